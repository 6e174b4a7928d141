// Small parts that several modules draw.
import { shown } from "./api.js";
import { html } from "./preact.js";

export function Chip({ children, ...props }) {
  return html`<button type="button" class="chip" ...${props}>${children}</button>`;
}

export function Twist({ isOpen, label, onTurn }) {
  return html`<button type="button" class="twist" aria-expanded=${isOpen} aria-label=${`${isOpen ? "fold" : "unfold"} ${shown(label)}`} onClick=${() => onTurn(!isOpen)}>${isOpen ? "▾" : "▸"}</button>`;
}

export function Failure({ error }) {
  return error ? html`<p class="error" role="alert">${shown(error.message ?? error)}</p>` : null;
}
