// The keys of a commit as a tree, the changed ones marked.
import { counted, get, grouped, named, shown, sizeText, toggled, typeText } from "./api.js";
import { go, readPlace } from "./place.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "./preact.js";
import { Chip, Failure } from "./widgets.js";

const PAGE = 500;
const SIGNS = { added: "+", modified: "~", removed: "−" };

/** The sign of a change, with its colour. */
export function Sign({ change }) {
  return change ? html`<span class=${`sign is-${change}`} title=${change} aria-label=${change}>${SIGNS[change]}</span>` : html`<span class="sign"></span>`;
}

/** The items that are open, one below the other, each with its depth. */
function flat(answers, open, prefix, depth, found) {
  const answer = answers.get(prefix);
  for (const item of answer?.items ?? []) {
    found.push({ ...item, depth, id: item.folder ?? item.key });
    if (item.folder && open.has(item.folder)) flat(answers, open, item.folder, depth + 1, found);
  }
  if (answer?.next) found.push({ depth, id: `${prefix}\u0000more`, more: prefix, after: answer.next });
  return found;
}

function foldersOf(key) {
  const steps = key.split("/").slice(0, -1);
  return steps.map((_, at) => `${steps.slice(0, at + 1).join("/")}/`);
}

/** The open folders with their items, for a commit; the items of the commit before stay until then. */
function useKeys(rev, changed, open) {
  const [state, setState] = useState({ answers: new Map(), error: null, name: "" });
  const name = `${rev} ${changed}`;
  const wanted = ["", ...open];
  useEffect(() => {
    if (!rev) return undefined;
    let isWanted = true;
    const params = (prefix) => ({ rev, prefix, changed, limit: PAGE });
    const lacking = state.name === name ? wanted.filter((prefix) => !state.answers.has(prefix)) : wanted;
    if (!lacking.length) return undefined;
    Promise.all(lacking.map((prefix) => get("/keys", params(prefix)))).then(
      (found) => isWanted && setState((before) => {
        const answers = new Map(before.name === name ? before.answers : []);
        lacking.forEach((prefix, at) => answers.set(prefix, found[at]));
        return { answers, error: null, name };
      }),
      (error) => isWanted && setState({ answers: new Map(), error, name }),
    );
    return () => { isWanted = false; };
  }, [name, wanted.join("\n")]);
  const more = async (prefix, after) => {
    const next = await get("/keys", { rev, prefix, changed, limit: PAGE, after });
    setState((before) => {
      if (before.name !== name || before.answers.get(prefix)?.next !== after) return before; // asked twice
      const answers = new Map(before.answers);
      answers.set(prefix, { ...next, items: [...answers.get(prefix).items, ...next.items] });
      return { ...before, answers };
    });
  };
  return { ...state, more };
}

/** The tree. `steps` is filled with functions that the keyboard calls. */
export function KeyTree({ rev, place, steps }) {
  const changed = place.only === "1";
  const [open, setOpen] = useState(() => new Set(foldersOf(place.key ?? "")));
  const [at, setAt] = useState(null);
  const box = useRef(null);
  const { answers, error, more } = useKeys(rev, changed, [...open]);
  const items = flat(answers, open, "", 0, []);
  const root = answers.get("");

  useEffect(() => {
    if (place.key === undefined) return;
    const lacking = foldersOf(place.key).filter((folder) => !open.has(folder));
    if (lacking.length) setOpen(new Set([...open, ...lacking]));
    setAt(place.key);
  }, [place.key]);

  const show = (key, place, options) => go({ key, path: "", page: "", tab: readPlace().tab === "diff" ? "diff" : "", ...place }, options);
  const choose = (item) => {
    setAt(item.id);
    if (item.more !== undefined) more(item.more, item.after);
    else if (item.folder) setOpen(toggled(open, item.folder));
    else show(item.key, { pane: "value" });
  };
  const move = (by) => {
    const from = items.findIndex((item) => item.id === at);
    const to = items[from < 0 ? (by > 0 ? 0 : items.length - 1) : Math.min(Math.max(from + by, 0), items.length - 1)];
    if (!to) return;
    setAt(to.id);
    if (to.key !== null && to.key !== undefined) show(to.key, {}, { replace: true });
  };
  const enter = () => {
    const item = items.find((each) => each.id === at);
    if (item) choose(item);
  };
  steps.current = { move, enter };

  useLayoutEffect(() => {
    box.current?.querySelector(".is-selected")?.scrollIntoView({ block: "nearest" });
  }, [at, items.length]);

  const row = (item) => {
    const isSelected = item.id === at;
    const props = {
      role: "treeitem",
      key: item.id,
      id: isSelected ? "key-selected" : undefined,
      class: `key ${isSelected ? "is-selected" : ""} ${item.change === "removed" ? "is-gone" : ""}`,
      style: { paddingLeft: `${8 + item.depth * 14}px` },
      "aria-level": item.depth + 1,
      "aria-selected": isSelected,
      onClick: () => choose(item),
    };
    if (item.more !== undefined) return html`<div ...${props}><span class="key-name is-dim">more keys …</span></div>`;
    return html`<div ...${props} aria-expanded=${item.folder ? open.has(item.folder) : undefined}>
      <${Sign} change=${item.change} />
      ${hasFolders && html`<span class="twist" aria-hidden="true">${item.folder ? (open.has(item.folder) ? "▾" : "▸") : ""}</span>`}
      <span class="key-name">${item.folder ? `${shown(item.name)}/` : named(item.name)}</span>
      <span class="key-note">${item.folder ? `${grouped(item.keys)}${item.changed ? ` · ${item.changed} changed` : ""}` : `${typeText(item.type)} ${sizeText(item.size)}`}</span>
    </div>`;
  };
  const hasFolders = items.some((item) => item.folder);
  const count = root?.keys ?? 0;
  return html`<section class="pane keys" aria-label="Keys">
    <div class="key-list" role="tree" aria-label="Keys of the commit" tabindex="0" ref=${box} aria-activedescendant=${items.some((item) => item.id === at) ? "key-selected" : undefined}>
      ${items.map(row)}
    </div>
    <${Failure} error=${error ?? (root?.note || null)} />
    ${root && !items.length && !error && html`<p class="empty">${changed ? "This commit changed no key." : "No keys here."}</p>`}
    <div class="foot">
      <span>${counted(count, "key")}</span>
      <${Chip} aria-pressed=${changed} title="show only what changed (o)" onClick=${() => go({ only: changed ? "" : "1" })}>only changed</${Chip}>
    </div>
  </section>`;
}
