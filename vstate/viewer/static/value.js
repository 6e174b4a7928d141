// The value of a key: the view that fits it, and the way to its parts.
import { counted, get, grouped, named, shown, sizeText, timeText, typeText, useAnswer } from "./api.js";
import { ArrayValue } from "./array.js";
import { BytesValue, Picture } from "./bytes.js";
import { Chat } from "./chat.js";
import { Sign } from "./keys.js";
import { hrefOf } from "./place.js";
import { html, useState } from "./preact.js";
import { TableValue } from "./table.js";
import { Failure, Twist, usePages, useSlow, Waiting } from "./widgets.js";

export const PARTS = 100;
const FILES = ["file", "executable"];

/** The steps of a path with the path up to each: messages[3].content. */
function stepsOf(path) {
  const found = [];
  const step = /\.?[A-Za-z_][A-Za-z0-9_]*|\["(?:[^"\\]|\\.)*"\]|\[[^\]]*\]|\{.+?\}|[\s\S]/gy;
  let at = 0;
  for (const match of path.matchAll(step)) {
    at = match.index + match[0].length;
    found.push([match[0].replace(/^\./, ""), path.slice(0, at)]);
  }
  return found;
}

/** The key and the path to the part that is shown, each step a link. */
export function Crumbs({ name, path }) {
  return html`<nav class="crumbs" aria-label="Path">
    <a href=${hrefOf({ path: "" })}>${named(name)}</a>
    ${stepsOf(path ?? "").map(([step, to]) => html`<span aria-hidden="true">›</span><a href=${hrefOf({ path: to })}>${shown(step)}</a>`)}
  </nav>`;
}

/** A leaf in its own colours: a number, a quoted text. */
export function Leaf({ part }) {
  const text = shown(part.text);
  return html`<span class=${`leaf is-${part.kind}`}>${part.kind === "text" ? `"${text}"` : text}</span>`;
}

/** One part and, once it is open, the parts inside it. */
function PartRow({ part, rev, name, depth, since }) {
  const [isOpen, setOpen] = useState(false);
  const canOpen = part.count > 0;
  const leads = ["array", "table", "bytes"].includes(part.kind) || (part.kind === "text" && part.text.length > 100);
  return html`<li role="none">
    <div class=${`part ${part.change ? `is-${part.change}` : ""}`} style=${{ paddingLeft: `${depth * 16}px` }}>
      ${canOpen && !leads
        ? html`<${Twist} isOpen=${isOpen} label=${part.label} onTurn=${setOpen} />`
        : html`<span class="twist"></span>`}
      <${Sign} change=${part.change} />
      <a class="part-name" href=${hrefOf({ path: part.path })}>${shown(part.label)}</a>
      <span class="part-type">${typeText(part.type)}${part.count ? ` ${grouped(part.count)}` : ""}</span>
      ${isOpen ? null : html`<${Leaf} part=${part} />`}
    </div>
    ${isOpen && html`<${Inside} rev=${rev} name=${name} path=${part.path} depth=${depth + 1} since=${since} />`}
  </li>`;
}

function Inside({ rev, name, path, depth, since }) {
  const { data, error } = useAnswer("/value", { rev, key: name, path, since, limit: PARTS });
  if (error) return html`<${Failure} error=${error} />`;
  return data ? html`<${Parts} answer=${data} rev=${rev} name=${name} depth=${depth} since=${since} />` : null;
}

function Parts({ answer, rev, name, depth = 0, since }) {
  const load = (first) => get("/value", { rev, key: name, path: answer.path, since, first, limit: PARTS });
  const [pages, button, next] = usePages(answer, load, (first) => `${grouped(answer.count - first)} more`);
  const parts = pages.flatMap((page) => page.parts);
  if (!parts.length) return html`<p class="leaf-line"><${Leaf} part=${answer} /></p>`;
  return html`<ul class="parts">
    ${parts.map((part) => html`<${PartRow} key=${part.path} part=${part} rev=${rev} name=${name} depth=${depth} since=${since} />`)}
    ${next !== null && html`<li>${button}</li>`}
  </ul>`;
}

/** The lines of a file, each with its number. */
function Numbered({ text }) {
  return html`<pre class="numbered" tabindex="0">${text.match(/.*\n|.+$/g)?.map((line) => html`<span>${line}</span>`)}</pre>`;
}

function TextValue({ answer, rev, name, since }) {
  const load = (first) => get("/value", { rev, key: name, path: answer.path, since, first, limit: PARTS });
  const { characters, lines, size } = answer.view;
  const left = (next) => (size ? `${sizeText(size - next)} more` : `${grouped(characters - next)} more characters`);
  const [pages, button] = usePages(answer, load, left, (page) => page.view.next);
  const text = shown(pages.map((page) => page.view.text).join(""));
  return html`<div class="text-value">
    ${answer.view.picture && html`<${Picture} rev=${rev} name=${name} path=${answer.path} />`}
    <p class="facts">${size ? null : `${counted(characters, "character")}, ${counted(lines, "line")}`}</p>
    ${FILES.includes(answer.type) ? html`<${Numbered} text=${text} />` : html`<pre tabindex="0">${text}</pre>`}
    ${button}
  </div>`;
}

const PLURALS = { list: ["item"], chat: ["message"], dict: ["entry", "entries"], set: ["member"], object: ["field"], class: ["field"] };
const VIEWS = { text: TextValue, table: TableValue, array: ArrayValue, chat: Chat, bytes: BytesValue };

function ValueFacts({ answer }) {
  return html`<p class="facts">
    <span class="mono">${shown(answer.type)}</span>
    ${answer.path ? null : html`<span>${sizeText(answer.size)}</span>`}
    ${PLURALS[answer.kind] && answer.count ? html`<span>${counted(answer.count, ...PLURALS[answer.kind])}</span>` : null}
    ${answer.expires && html`<span>expires ${timeText(answer.expires)}</span>`}
    ${answer.change && html`<span class=${`is-${answer.change}`}>${answer.change} in this commit</span>`}
  </p>`;
}

/** The value of a key at a commit, or the part at `path`. */
export function Value({ rev, name, path, since }) {
  const params = { rev, key: name, path, since, limit: PARTS };
  const { data, error, loading } = useAnswer("/value", params);
  const isSlow = useSlow(loading && `${rev} ${name} ${path}`);
  if (error) {
    const absent = error.status === 404;
    return html`<p class=${absent ? "empty" : "error"} role="alert">${absent && !path ? `This commit has no key ${named(name)}.` : shown(error.message)}</p>`;
  }
  if (!data || data.key !== name) return html`<${Waiting}>Reading the value</${Waiting}>`;
  const View = VIEWS[data.view?.kind];
  return html`<div class=${`value ${isSlow ? "is-stale" : ""}`}>
    <${ValueFacts} answer=${data} />
    <${Failure} error=${data.error} />
    ${data.view?.note && html`<p class="note">${shown(data.view.note)}</p>`}
    ${data.view && (View
      ? html`<${View} key=${`${data.version} ${data.change} ${data.path}`} answer=${data} rev=${rev} name=${name} since=${since} />`
      : html`<${Parts} answer=${data} rev=${rev} name=${name} since=${since} />`)}
  </div>`;
}
