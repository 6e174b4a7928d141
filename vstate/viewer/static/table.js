// Tables: frames and lists of records. Rows are fetched as they come into sight.
import { get, grouped, shown } from "./api.js";
import { html, useEffect, useRef, useState } from "./preact.js";
import { Chip } from "./widgets.js";

const LINE = 24; // pixels
const NUMBER = /^u?int|^float|^complex|^decimal/i;
const BLOCK = 100; // rows

/** A table whose rows are fetched as they come into sight. */
export function TableValue({ answer, rev, name, since }) {
  const { view } = answer;
  const [blocks, setBlocks] = useState(() => new Map([[0, view]]));
  const [top, setTop] = useState(0);
  const asked = useRef(new Set([0]));
  const box = useRef(null);
  const [next, setNext] = useState(0); // of the changed cells
  const wanted = useRef(null);
  const goToChange = () => {
    wanted.current = view.changes[next];
    box.current.scrollTop = Math.max(wanted.current[0] - room / 2, 0) * LINE;
    setNext((next + 1) % view.changes.length);
  };
  useEffect(() => { // its row may be drawn later
    const cell = wanted.current && box.current.querySelector(`[data-at="${wanted.current.join(" ")}"]`);
    if (!cell) return;
    wanted.current = null;
    cell.scrollIntoView({ block: "nearest", inline: "center" });
  });
  useEffect(() => {
    setBlocks(new Map([[0, view]]));
    asked.current = new Set([0]);
  }, [answer]);
  const room = Math.min(Math.max(view.rows, 1), 24);
  const first = Math.max(Math.floor(top / LINE) - 10, 0);
  const last = Math.min(first + room + 20, view.rows);
  useEffect(() => {
    for (let block = Math.floor(first / BLOCK); block * BLOCK < last; block += 1) {
      if (asked.current.has(block)) continue;
      asked.current.add(block);
      get("/value", { rev, key: name, path: answer.path, since, first: block * BLOCK, limit: BLOCK }).then(
        (found) => setBlocks((before) => new Map(before).set(block, found.view)),
        () => asked.current.delete(block),
      );
    }
  }, [first, last, answer]);

  const changed = new Set([...blocks.values()].flatMap((block) => block.changed.map(([row, column]) => `${row} ${column}`)));
  const rows = [];
  for (let at = first; at < last; at += 1) {
    const cells = blocks.get(Math.floor(at / BLOCK))?.cells[at % BLOCK];
    rows.push(html`<tr key=${at} style=${{ height: `${LINE}px` }}>${(cells ?? [at, ...view.columns.map(() => "…")]).map((cell, column) =>
      column < view.labels.length
        ? html`<th scope="row">${shown(cell)}</th>`
        : html`<td data-at=${`${at} ${column - view.labels.length}`} class=${`${NUMBER.test(view.columns[column - view.labels.length].dtype) ? "number" : ""} ${changed.has(`${at} ${column - view.labels.length}`) ? "is-changed" : ""}`}>${shown(cell)}</td>`)}</tr>`);
  }
  return html`<div class="table-value">
    <p class="facts">${view.changes.length ? html`<${Chip} onClick=${goToChange}>go to change ${next + 1} of ${view.changes.length}</${Chip}> ` : null}${grouped(view.rows)} rows × ${grouped(view.columns.length + view.more_columns)} columns${view.more_columns ? `, the first ${view.columns.length} shown` : ""}</p>
    <div class="table-box" ref=${box} tabindex="0" role="region" aria-label="Table" style=${{ maxHeight: `${(room + 2) * LINE}px` }} onScroll=${(event) => setTop(event.target.scrollTop)}>
      <table>
        <thead><tr>
          ${view.labels.map((label) => (label.name ? html`<th scope="col">${shown(label.name)}</th>` : html`<td></td>`))}
          ${view.columns.map((column, at) => html`<th scope="col" class=${view.changed_columns.includes(at) ? "is-changed" : column.is_readable ? "" : "is-dim"}>${shown(column.name)}<small>${shown(column.dtype)}</small></th>`)}
        </tr></thead>
        <tbody>
          ${first ? html`<tr aria-hidden="true" style=${{ height: `${first * LINE}px` }}></tr>` : null}
          ${rows}
          ${last < view.rows && html`<tr aria-hidden="true" style=${{ height: `${(view.rows - last) * LINE}px` }}></tr>`}
        </tbody>
      </table>
    </div>
  </div>`;
}
