// Changes of the store: each shows what will change first, and is made only on what the page has seen.
import { post, shown, useAnswer } from "./api.js";
import { Sign } from "./keys.js";
import { go } from "./place.js";
import { html, useEffect, useRef, useState } from "./preact.js";
import { Chip, Failure } from "./widgets.js";

/** What a change would do, and the button that makes it. */
export function Preview({ path, body, label, onDone, onCancel }) {
  const [state, setState] = useState({});
  const name = JSON.stringify(body);
  useEffect(() => {
    let isWanted = true;
    post(path, { ...body, preview: true }).then((found) => isWanted && setState({ found, of: name }), (error) => isWanted && setState({ error, of: name }));
    return () => { isWanted = false; };
  }, [path, name]);
  const make = async () => {
    try {
      onDone(await post(path, body));
    } catch (error) {
      setState({ error, of: name });
    }
  };
  const { found, error } = state.of === name ? state : {};
  const changes = found?.changes;
  return html`<div class="preview" aria-live="polite">
    <${Failure} error=${error} />
    ${found ? html`
      ${found.to === null ? html`<p>Nothing would change.</p>` : null}
      ${changes ? html`<p>${found.branch ? html`<b>${shown(found.branch)}</b> would get: ` : null}<span class="is-added">${changes.counts.added} added</span>, <span class="is-modified">${changes.counts.modified} modified</span>, <span class="is-removed">${changes.counts.removed} removed</span></p>
        <ul class="plain">${changes.changes.map((change) => html`<li><${Sign} change=${change.kind} /> ${shown(change.key)}</li>`)}</ul>` : null}
      ${found.to !== null && !changes ? html`<p>${found.tag ? `The tag ${shown(found.tag)}` : `The branch ${shown(found.branch)}`} would begin at <span class="mono">${found.to.slice(0, 10)}</span> ${shown(found.message.split("\n")[0])}.</p>` : null}
      ${found.to !== null ? html`<button type="button" class="chip is-strong" onClick=${make}>${label}</button>` : null}` : null}
    ${onCancel ? html`<${Chip} onClick=${onCancel}>cancel</${Chip}>` : null}
  </div>`;
}

function NameForm({ label, children, onName }) {
  const [name, setName] = useState("");
  return html`<form class="name-form" onSubmit=${(event) => { event.preventDefault(); if (name.trim()) onName(name.trim()); }}>
    <label>${label} <input autofocus value=${name} required spellcheck="false" onInput=${(event) => setName(event.target.value)} /></label>
    ${children}<button type="submit" class="chip">see what changes</button>
  </form>`;
}

const EDITED = ["int", "float", "str", "bool"];

/** The text of a field as a value of that type; undefined if it is none. */
export function valueOf(type, text) {
  if (type === "str") return text;
  if (type === "int") return /^\s*[-+]?\d{1,15}\s*$/.test(text) ? Number(text) : undefined;
  if (type === "float") return text.trim() && Number.isFinite(Number(text)) ? Number(text) : undefined;
  if (type === "bool") return { true: true, false: false }[text.trim().toLowerCase()];
  return null;
}

function EditForm({ rev, name, path, onBody }) {
  const { data } = useAnswer("/value", { rev, key: name, path, limit: 1000 });
  const [text, setText] = useState(null);
  const [branch, setBranch] = useState("edit");
  if (!data) return null;
  if (!EDITED.includes(data.type)) return html`<p>Open one number, text or truth value inside it, and edit that one.</p>`;
  const { type } = data;
  const whole = data.view?.kind === "text" ? data.view.text : data.text;
  if (data.view?.next) return html`<p>This text is too long to edit here.</p>`;
  const current = text ?? whole;
  const value = valueOf(type, current);
  const submit = (event) => {
    event.preventDefault();
    if (value !== undefined) onBody({ rev, key: name, path: path ?? "", type, value, branch: branch.trim() });
  };
  return html`<form class="edit-form" onSubmit=${submit}>
    <label>${type} ${type === "str" ? html`<textarea rows="6" value=${current} onInput=${(event) => setText(event.target.value)}></textarea>` : html`<input value=${current} spellcheck="false" onInput=${(event) => setText(event.target.value)} />`}</label>
    ${value === undefined ? html`<p class="error">This is no ${type}.</p>` : null}
    <label>on the new branch <input value=${branch} required spellcheck="false" onInput=${(event) => setBranch(event.target.value)} /></label>
    <button type="submit" class="chip">see what changes</button>
  </form>`;
}

const NOTES = {
  rollback: "A new commit brings back the state of this one. The commits since then stay in the history.",
  revert: "A new commit takes back what this one changed.",
  undo: "The branch goes back to where it was before its last move.",
  edit: "The edit goes to a new branch, and keeps the types of all parts.",
};

/** The buttons for the commit that is shown; nothing if the page may only read. */
export function Actions({ rev, place, store, refs }) {
  const [open, setOpen] = useState(null);
  const [body, setBody] = useState(null);
  const dialog = useRef(null);
  useEffect(() => {
    if (dialog.current && !dialog.current.open) dialog.current.showModal();
    else if (open && !dialog.current) setOpen(null); // what it was about is gone
  });
  if (!store?.write || !rev) return null;
  const chosenBranch = place.branch?.replace(/^heads\//, "");
  const branch = refs?.branches.some((found) => found.name === chosenBranch) ? chosenBranch : store.head.branch;
  const seen = refs?.branches.find((found) => found.name === branch)?.commit;
  const close = () => {
    setOpen(null);
    setBody(null);
  };
  const done = (found) => {
    close();
    go({ rev: "", branch: found.branch && found.branch !== store.head.branch ? found.branch : place.branch });
  };
  const start = (action, first = null) => {
    setBody(first);
    setOpen(action);
  };
  const moves = { branch, seen };
  const all = [
    ["fork", "Fork here", "/branches", () => start("fork")],
    ["tag", "Tag", "/tags", () => start("tag")],
    ...(branch && seen ? [
      ["rollback", `Roll ${branch} back to this`, "/rollback", () => start("rollback", { ...moves, rev })],
      ["revert", "Revert this commit", "/revert", () => start("revert", { ...moves, rev })],
      ["undo", `Undo on ${branch}`, "/undo", () => start("undo", { ...moves })],
    ] : []),
    ...(place.key ? [["edit", "Edit this value", "/edit", () => start("edit")]] : []),
  ];
  const chosen = all.find(([id]) => id === open);
  return html`<div class="actions">
    ${all.map(([id, label, , begin]) => html`<${Chip} onClick=${begin}>${shown(label)}</${Chip}>`)}
    ${chosen ? html`<dialog ref=${dialog} onClose=${close} aria-labelledby="action-title">
      <h2 id="action-title">${shown(chosen[1])}</h2>
      ${NOTES[open] ? html`<p class="is-dim">${NOTES[open]}</p>` : null}
      ${body ? html`<${Preview} path=${chosen[2]} body=${body} label=${chosen[1]} onDone=${done} onCancel=${close} />`
        : open === "edit" ? html`<${EditForm} rev=${rev} name=${place.key} path=${place.path} onBody=${setBody} />`
        : html`<${NameForm} label=${open === "tag" ? "name of the tag" : "name of the branch"} onName=${(name) => setBody({ name, at: rev })} />`}
      ${body ? null : html`<${Chip} onClick=${close}>cancel</${Chip}>`}
    </dialog>` : null}
  </div>`;
}
