// Small parts that several modules draw.
import { shown } from "./api.js";
import { html } from "./preact.js";

/** A small button. */
export function Chip({ children, ...props }) {
  return html`<button type="button" class="chip" ...${props}>${children}</button>`;
}

/** The button that folds something, or unfolds it. */
export function Twist({ isOpen, label, onTurn }) {
  return html`<button type="button" class="twist" aria-expanded=${isOpen} aria-label=${`${isOpen ? "fold" : "unfold"} ${shown(label)}`} onClick=${() => onTurn(!isOpen)}>${isOpen ? "▾" : "▸"}</button>`;
}

/** Why something failed. */
export function Failure({ error }) {
  return error ? html`<p class="error" role="alert">${shown(error.message ?? error)}</p>` : null;
}
