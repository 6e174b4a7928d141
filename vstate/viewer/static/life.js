// The life of a key: its versions, a number over time, and who wrote each part.
import { counted, get, grouped, named, shown, sizeText, timeText, useAnswer } from "./api.js";
import { LineChart } from "./chart.js";
import { Sign } from "./keys.js";
import { go, hrefOf } from "./place.js";
import { html, useEffect, useState } from "./preact.js";
import { Leaf } from "./value.js";
import { Failure, Twist, usePages, Waiting } from "./widgets.js";

const PAGE = 100;

/** The versions of the part at `path`, newest first, from the commit `from` back; a number is a line over time. */
export function Life({ from, rev, name, path }) {
  const params = { rev: from, key: name, path, limit: PAGE };
  const { data, error } = useAnswer("/history", params);
  const [pages, button, next, load] = usePages(data, (next) => get("/history", { ...params, ...next }), () => "earlier versions");
  const commits = pages.flatMap((page) => page.commits);
  useEffect(() => { if (data && !commits.length && next) load(); }, [data, pages.length]); // three seconds each
  if (error) return html`<${Failure} error=${error} />`;
  if (!data) return html`<${Waiting}>Reading the history</${Waiting}>`;
  const sum = (name) => pages.reduce((count, page) => count + page[name], 0);
  const forward = [...commits].reverse();
  return html`<div class="life">
    <${LineChart} numbers=${forward.map((commit) => commit.number)} labels=${forward.map((commit) => `${timeText(commit.time)} ${shown(commit.message)}`)}
      caption="a number over its versions" onPick=${(at) => go({ rev: forward[at].id })} />
    <p class="facts">${counted(commits.length, "commit")}${path ? ` of the ${next ? "newest " : ""}${grouped(sum("looked"))} that changed this key changed this part${sum("unread") ? `; ${grouped(sum("unread"))} cannot be compared` : ""}` : ` changed this key${next ? ", and earlier ones" : ""}`}</p>
    <table class="versions"><thead class="sr"><tr><th>change</th><th>commit</th><th>time</th><th>message</th><th>value</th></tr></thead><tbody>
      ${commits.map((commit) => html`<tr class=${commit.id === rev ? "is-selected" : ""}>
        <td><${Sign} change=${commit.kind} /></td>
        <td><a class="mono" href=${hrefOf({ rev: commit.id, tab: "diff" })} title="what this commit changed">${commit.short.slice(0, 8)}</a></td>
        <td class="is-dim">${timeText(commit.time)}</td>
        <td>${shown(commit.message) || html`<span class="is-dim">(no message)</span>`}</td>
        <td class="life-text mono">${commit.text === null ? html`<span class="is-dim">${shown(commit.type ?? "")} ${sizeText(commit.size)}</span>` : html`<${Leaf} part=${{ text: commit.text, kind: commit.number !== null ? "number" : commit.type === "str" ? "text" : "other" }} />`}</td>
      </tr>`)}
    </tbody></table>
    ${button}
  </div>`;
}

/** One part beside its commit, and once it is open, the parts inside it beside theirs. */
function Blamed({ part, rev, name, isSame, depth }) {
  const [isOpen, setOpen] = useState(false);
  const hasInside = part.line === null && part.path && (part.count > 0 || (part.kind === "text" && part.text.includes("↵")));
  return html`<tr class=${`${isSame ? "is-same" : ""} ${part.commit.id === rev ? "is-new" : ""}`}>
      <td class="blame-commit">${isSame ? null : html`<a href=${hrefOf({ rev: part.commit.id })} title=${timeText(part.commit.time)}><span class="mono">${part.commit.short.slice(0, 8)}</span> ${shown(part.commit.message).slice(0, 60)}</a>`}</td>
      <td class="mono is-dim" style=${{ paddingLeft: `${depth * 16}px` }}>${part.line ?? html`${hasInside && html`<${Twist} isOpen=${isOpen} label=${part.path} onTurn=${setOpen} />`}<a href=${hrefOf({ path: part.path, tab: "" })}>${shown(part.path)}</a>`}</td>
      <td class="blame-text">${part.line === null ? html`<${Leaf} part=${part} />` : shown(part.text)}</td>
    </tr>
    ${isOpen && html`<${BlameRows} rev=${rev} name=${name} path=${part.path} depth=${depth + 1} />`}`;
}

function BlameRows({ rev, name, path, depth = 0 }) {
  const { data, error, loading } = useAnswer("/blame", { rev, key: name, path });
  const line = (inside) => html`<tr><td colspan="3">${inside}</td></tr>`;
  if (error) return line(html`<${Failure} error=${error.status === 404 && !path ? `This commit has no key ${named(name)}.` : error} />`);
  if (!data || loading) return line(html`<${Waiting}>Looking for the commits that wrote each part</${Waiting}>`);
  if (data.error) return line(html`<p class="note">${shown(data.error)}</p>`);
  return html`${data.parts.map((part, at) => html`<${Blamed} key=${`${part.path} ${part.line}`} part=${part} rev=${rev} name=${name} depth=${depth} isSame=${at > 0 && data.parts[at - 1].commit.id === part.commit.id} />`)}
    ${data.more ? line(html`<p class="is-dim">and ${counted(data.more, "more part")}</p>`) : null}`;
}

export function Blame(place) {
  return html`<table class="blame"><thead class="sr"><tr><th>commit</th><th>part</th><th>value</th></tr></thead><tbody><${BlameRows} ...${place} /></tbody></table>`;
}
