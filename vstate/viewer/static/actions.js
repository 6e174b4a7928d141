// Changes of the store: each shows what will change first, and is made only on what the page has seen.
import { named, post, shown, useAnswer, useLoaded } from "./api.js";
import { Details } from "./diff.js";
import { Sign } from "./keys.js";
import { go } from "./place.js";
import { html, useEffect, useRef, useState } from "./preact.js";
import { PARTS } from "./value.js";
import { Chip, Failure, Tally } from "./widgets.js";

/** The keys that a change would change, and what changes inside the first ones. */
export function Changes({ page }) {
  return html`<p class="facts"><${Tally} counts=${page.counts} /></p>
    <ul class="plain">${page.changes.map((change) => html`<li><${Sign} change=${change.kind} /> <b>${named(change.key)}</b>
      ${change.inside && html`<${Details} answer=${change.inside} />`}</li>`)}</ul>
    ${page.next === null ? null : html`<p class="is-dim">and more keys</p>`}`;
}

function Move({ found }) {
  const to = html`“${shown(found.message) || "(no message)"}”`;
  if (!found.changes) return html`<p role="status">The new ${found.tag ? "tag" : "branch"} <b>${shown(found.tag ?? found.branch)}</b> would stand at <span class="mono">${found.to.slice(0, 10)}</span> ${to}.</p>`;
  return html`<p role="status"><b>${shown(found.branch)}</b> would go from <span class="mono">${found.from.slice(0, 10)}</span> “${shown(found.from_message) || "(no message)"}” to ${to}:</p>
    <${Changes} page=${found.changes} />`;
}

/** What a change would do, and the button that makes it. */
export function Preview({ path, body, label, onDone }) {
  const name = JSON.stringify([path, body]);
  const [state, setState] = useLoaded(name, () => post(path, { ...body, preview: true }));
  const make = async () => {
    try {
      onDone(await post(path, body));
    } catch (error) {
      setState({ data: null, error, of: name });
    }
  };
  const { data: found, error } = state.of === name ? state : {};
  return html`<div class="preview">
    <${Failure} error=${error} />
    ${found?.to === null && html`<p>Nothing would change.</p>`}
    ${found?.to && html`<${Move} found=${found} /><button type="button" class="chip is-strong" onClick=${make}>${label}</button>`}
  </div>`;
}

/** A form whose fields stay while what they would change is shown below. `onInput` is told of each edit. */
function Form({ isReady = true, onSubmit, onInput, children }) {
  const submit = (event) => {
    event.preventDefault();
    if (isReady) onSubmit();
  };
  return html`<form class="edit-form" onSubmit=${submit} onInput=${onInput}>
    ${children}<button type="submit" class="chip" disabled=${!isReady}>see what changes</button>
  </form>`;
}

function NameForm({ label, onInput, onName }) {
  const [name, setName] = useState("");
  return html`<${Form} isReady=${Boolean(name.trim())} onInput=${onInput} onSubmit=${() => onName(name.trim())}>
    <label>${label} <input autofocus value=${name} required spellcheck=${false} onInput=${(event) => setName(event.target.value)} /></label>
  </${Form}>`;
}

const EDITED = ["int", "float", "str", "bool"];

/** The text of a field as a value of that type, a whole number as its digits; undefined if it is none. */
function valueOf(type, text) {
  if (type === "str") return text;
  if (type === "int") return /^\s*[-+]?\d{1,4000}\s*$/.test(text) ? text.trim() : undefined;
  if (type === "float") return text.trim() && Number.isFinite(Number(text)) ? Number(text) : undefined;
  return { true: true, false: false }[text.trim().toLowerCase()];
}

function EditForm({ answer, rev, name, path = "", refs, onInput, onBody }) {
  const type = answer.view?.kind === "text" ? "str" : answer.type; // a file is edited as its text
  const whole = answer.view?.kind === "text" ? answer.view.text : answer.text;
  const taken = new Set((refs?.branches ?? []).map((found) => found.name));
  const [text, setText] = useState(whole);
  const [branch, setBranch] = useState(() => {
    let free = "edit";
    for (let number = 2; taken.has(free); number += 1) free = `edit-${number}`;
    return free;
  });
  const [refusal, setRefusal] = useState(null);
  const isCut = answer.view?.next || (type !== "str" && whole.endsWith("…"));
  const body = (value) => ({ rev, key: name, path, type, value, branch: branch.trim() });
  useEffect(() => { // the same value changes nothing, but tells whether it can be edited
    const value = valueOf(type, whole);
    if (!isCut && value !== undefined) post("/edit", { ...body(value), preview: true }).catch(setRefusal);
  }, []);
  if (isCut) return html`<p>This ${type} is too long to edit here.</p>`;
  if (whole.includes("\r")) return html`<p>A page cannot keep the line ends of this text, \\r. Edit it in Python.</p>`;
  if (refusal) return html`<${Failure} error=${refusal} />`;
  const value = valueOf(type, text);
  const edit = (event) => setText(event.target.value);
  const field = {
    str: () => html`<textarea rows="6" value=${text} onInput=${edit}></textarea>`,
    bool: () => html`<select value=${text} onChange=${edit}><option value="True">True</option><option value="False">False</option></select>`,
  }[type] ?? (() => html`<input value=${text} spellcheck=${false} onInput=${edit} />`);
  return html`<${Form} isReady=${value !== undefined && text !== whole && Boolean(branch.trim())} onInput=${onInput} onSubmit=${() => onBody(body(value))}>
    <label>${type} ${field()}</label>
    ${value === undefined && html`<p class="error">This is no ${type}.</p>`}
    <label>on the new branch <input value=${branch} required spellcheck=${false} onInput=${(event) => setBranch(event.target.value)} /></label>
  </${Form}>`;
}

const NOTES = {
  rollback: "A new commit brings back the state of this one. The commits since then stay in the history.",
  revert: "A new commit takes back what this one changed.",
  undo: "The branch goes back to where it was before its last move.",
  redo: "The branch goes again to where it was before it was undone.",
  edit: "The edit goes to a new branch, and keeps the types of all parts.",
};

export function Actions({ rev, place, store, refs }) {
  const [open, setOpen] = useState(null);
  const [about, setAbout] = useState(null); // what was shown when the dialog opened
  const [body, setBody] = useState(null);
  const dialog = useRef(null);
  useEffect(() => {
    if (dialog.current && !dialog.current.open) dialog.current.showModal();
    else if (open && !dialog.current) setOpen(null); // what it was about is gone
  });
  const isValue = store?.write && rev && place.key !== undefined;
  const { data, loading } = useAnswer(isValue ? "/value" : null, { rev, key: place.key, path: place.path, since: place.against, limit: PARTS });
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
    if (open === "edit") go({ rev: "", branch: found.branch });
    else if (open !== "fork" && open !== "tag") go({ rev: "" });
  };
  const start = (action, first = null) => {
    setAbout({ answer: data, rev, name: place.key, path: place.path });
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
      ["redo", `Redo on ${branch}`, "/redo", () => start("redo", { ...moves })],
    ] : []),
    ...(open === "edit" && place.key === about.name && place.path === about.path || ((EDITED.includes(data?.type) || data?.view?.kind === "text") && !loading) ? [["edit", "Edit this value", "/edit", () => start("edit")]] : []),
  ];
  const chosen = all.find(([id]) => id === open);
  const forget = () => setBody(null);
  return html`<div class="actions">
    ${all.map(([id, label, , begin]) => html`<${Chip} onClick=${begin}>${shown(label)}</${Chip}>`)}
    ${chosen && html`<dialog ref=${dialog} onClose=${close} aria-labelledby="action-title">
      <h2 id="action-title">${shown(chosen[1])}</h2>
      ${NOTES[open] && html`<p class="is-dim">${NOTES[open]}</p>`}
      ${open === "edit" ? html`<${EditForm} ...${about} refs=${refs} onInput=${forget} onBody=${setBody} />`
        : open === "fork" || open === "tag" ? html`<${NameForm} label=${open === "tag" ? "name of the tag" : "name of the branch"} onInput=${forget} onName=${(name) => setBody({ name, at: about.rev })} />` : null}
      ${body && html`<${Preview} path=${chosen[2]} body=${body} label=${chosen[1]} onDone=${done} />`}
      <${Chip} onClick=${close}>cancel</${Chip}>
    </dialog>`}
  </div>`;
}
