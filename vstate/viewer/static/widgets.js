// Small parts that several modules draw.
import { shown } from "./api.js";
import { html, useEffect, useState } from "./preact.js";

export function Chip({ children, ...props }) {
  return html`<button type="button" class="chip" ...${props}>${children}</button>`;
}

export function Twist({ isOpen, label, onTurn }) {
  return html`<button type="button" class="twist" aria-expanded=${isOpen} aria-label=${`${isOpen ? "fold" : "unfold"} ${shown(label)}`} onClick=${() => onTurn(!isOpen)}>${isOpen ? "▾" : "▸"}</button>`;
}

/** A word about what loads, once it takes long. */
export function Waiting({ children }) {
  const isSlow = useSlow(true);
  return isSlow ? html`<p class="empty" role="status">${children} …</p>` : null;
}

/** Whether something has been loading for a while. */
export function useSlow(loading) {
  const [isSlow, setSlow] = useState(false);
  useEffect(() => {
    setSlow(false);
    const timer = loading && setTimeout(() => setSlow(true), 150);
    return () => clearTimeout(timer);
  }, [loading]);
  return isSlow;
}

export function Failure({ error }) {
  return error ? html`<p class="error" role="alert">${shown(error.message ?? error)}</p>` : null;
}
