// The keys of the page.
import { html, useEffect, useRef } from "./preact.js";
import { Chip } from "./widgets.js";

const KEYS = [
  ["← →", "an older or a newer commit"],
  ["↑ ↓", "another key of the store"],
  ["Enter", "open a folder or a run"],
  ["v d l b", "value, diff, life, blame"],
  ["o", "only what changed"],
  ["p", "pin the key"],
  ["f", "fold runs of alike commits"],
  ["s", "diffs side by side"],
  ["n", "choose a branch"],
  ["m", "merge two branches on trial"],
  ["h", "health of the store"],
  ["g", "follow the newest commit"],
  ["/", "filter and search"],
  ["t", "dark or light"],
  ["Esc", "back"],
  ["?", "this help"],
];

export function Help({ onClose }) {
  const dialog = useRef(null);
  useEffect(() => dialog.current.showModal(), []);
  return html`<dialog class="help" ref=${dialog} onClose=${onClose} aria-labelledby="help-title" onClick=${(event) => event.target === dialog.current && dialog.current.close()}>
    <h2 id="help-title">The keyboard</h2>
    <dl>${KEYS.map(([key, text]) => html`<div><dt><kbd>${key}</kbd></dt><dd>${text}</dd></div>`)}</dl>
    <p>In front of a key of the store: <b class="is-added">+</b> added, <b class="is-modified">~</b> changed, <b class="is-removed">−</b> removed. A square in the list of commits is a run of alike ones: Enter or a second click unfolds it.</p>
    <p class="is-dim">The address behind # is the place: it leads to the same view in every viewer of this store.</p>
    <${Chip} onClick=${() => dialog.current.close()}>close</${Chip}>
  </dialog>`;
}
