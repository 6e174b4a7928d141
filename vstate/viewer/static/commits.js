// The commits as a list with lanes. Rows are made as they come into sight.
import { counted, shown, spanText, timeText, nameOf } from "./api.js";
import { go } from "./place.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "./preact.js";
import { Chip } from "./widgets.js";

const ROW = 44; // pixels
const LANE = 12;
const MOST_DRAWN = 12; // lanes
const AROUND = 8; // rows outside of what is seen
const IDLE = 1800; // seconds without a commit that are worth a word

function Graph({ row, width }) {
  const x = (lane) => 10 + Math.min(lane, MOST_DRAWN) * LANE;
  const middle = ROW / 2;
  const isLong = row.idle >= IDLE;
  const path = ([from, to]) =>
    from === to
      ? `M${x(from)} ${middle}V${middle + ROW}`
      : `M${x(from)} ${middle}C${x(from)} ${middle + ROW * 0.6} ${x(to)} ${middle + ROW * 0.4} ${x(to)} ${middle + ROW}`;
  const own = row.edges.find(([from]) => from === row.lane);
  const colour = own ? own[2] : row.lane;
  return html`<svg class="graph" width=${width} height=${ROW} aria-hidden="true">
    ${row.edges.map((edge) => html`<path d=${path(edge)} class=${`lane lane-${edge[2] % 8} ${isLong ? "is-idle" : ""}`} />`)}
    ${row.folded
      ? html`<rect x=${x(row.lane) - 5} y=${middle - 5} width="10" height="10" rx="2" class=${`dot lane-${colour % 8} is-folded`} />`
      : html`<circle cx=${x(row.lane)} cy=${middle} r=${row.parents.length > 1 ? 5 : 4} class=${`dot lane-${colour % 8} ${row.parents.length > 1 ? "is-merge" : ""}`} />`}
  </svg>`;
}

export function Ref({ found }) {
  const kind = found.kind === "HEAD" ? "head" : found.kind;
  return html`<span class=${`ref is-${kind} ${found.current ? "is-current" : ""}`} title=${`${found.kind} ${nameOf(found.name)}`}>${nameOf(found.name)}</span>`;
}

function Counts({ changes }) {
  const signs = [["+", "added"], ["~", "modified"], ["−", "removed"]];
  return html`<span class="counts">${signs.filter(([, kind]) => changes[kind]).map(
    ([sign, kind]) => html`<span class=${`is-${kind}`} title=${`${changes[kind]} ${kind}`}>${sign}${changes[kind]}</span>`)}</span>`;
}

function Row({ row, at, total, width, isSelected, onSelect }) {
  const names = row.changes.names.map(([sign, key]) => `${sign}${shown(key)}`).join("  ");
  const title = row.folded ? `${row.folded} × ${shown(row.message) || "(no message)"}` : shown(row.message) || "(no message)";
  return html`<div role="option" id=${`commit-${at}`} class=${`commit ${isSelected ? "is-selected" : ""}`} style=${{ top: `${at * ROW}px`, height: `${ROW}px` }}
      aria-selected=${isSelected} aria-setsize=${total} aria-posinset=${at + 1} onClick=${() => onSelect(at)} title=${`${row.short} ${timeText(row.time)}\n${names}`}>
    <${Graph} row=${row} width=${width} />
    <div class="commit-text">
      <div class="commit-line">
        ${row.folded ? html`<span class="is-dim" aria-hidden="true">▸</span>` : null}
        <span class=${`commit-message ${row.message ? "" : "is-empty"}`}>${title}</span>
        ${row.refs.slice(0, 3).map((found) => html`<${Ref} key=${found.name} found=${found} />`)}
        ${row.refs.length > 3 && html`<span class="ref">+${row.refs.length - 3}</span>`}
      </div>
      <div class="commit-line is-dim">
        <span class="mono">${row.short.slice(0, 8)}</span>
        <span>${timeText(row.time)}</span>
        ${row.span ? html`<span>over ${spanText(row.span)}</span>` : null}
        <${Counts} changes=${row.changes} />
        <span class="commit-keys">${names}</span>
        ${row.author && html`<span class="mono" title="the key of the signature">${row.author.replace("ed25519:", "✓")}</span>`}
        ${row.damage && html`<span class="is-bad" title=${shown(row.damage)}>damaged</span>`}
        ${row.cut && html`<span title="commits behind it were removed">shortened</span>`}
        ${row.idle >= IDLE && html`<span class="idle">idle ${spanText(row.idle)}</span>`}
      </div>
    </div>
  </div>`;
}

/** The list. `selected` is the place of the chosen commit in it; `onSelect` gets the place of another. */
export function CommitList({ listing, selected, onSelect }) {
  const box = useRef(null);
  const [seen, setSeen] = useState([0, 30]);
  const total = listing.known;

  const look = () => {
    const at = Math.floor(box.current.scrollTop / ROW);
    const count = Math.ceil(box.current.clientHeight / ROW);
    setSeen((before) => (before[0] === at && before[1] === count ? before : [at, count]));
  };
  useLayoutEffect(() => {
    look();
    const observer = new ResizeObserver(look);
    observer.observe(box.current);
    return () => observer.disconnect();
  }, []);
  useLayoutEffect(() => {
    if (selected === null) return;
    const top = selected * ROW;
    const { scrollTop, clientHeight } = box.current;
    if (top < scrollTop || top + ROW > scrollTop + clientHeight) {
      box.current.scrollTop = top < scrollTop && top + 3 * ROW > scrollTop ? top : top - clientHeight / 2 + ROW;
    }
  }, [selected, JSON.stringify(listing.query)]);

  const first = Math.max(seen[0] - AROUND, 0);
  const last = Math.min(seen[0] + seen[1] + AROUND, total);
  useEffect(() => {
    // While somebody scrolls fast, rows that are gone at once are not asked for.
    const timer = setTimeout(() => {
      for (let at = first; at < last; at += 20) if (!listing.rows.has(at)) listing.need(at);
      if (last > 0 && !listing.rows.has(last - 1)) listing.need(last - 1);
    }, 60);
    return () => clearTimeout(timer);
  }, [first, last, listing]);

  const rows = [];
  for (let at = first; at < last; at += 1) if (listing.rows.has(at)) rows.push([at, listing.rows.get(at)]);
  const lanes = Math.max(1, ...rows.map(([, row]) => Math.min(row.lanes, MOST_DRAWN)));
  const width = 16 + lanes * LANE;
  const all = listing.complete ? total : -1;
  return html`<div class="commit-list" role="listbox" aria-label="Commits" tabindex="0" ref=${box} onScroll=${look}
      aria-activedescendant=${selected === null ? undefined : `commit-${selected}`}>
    <div class="commit-space" role="presentation" style=${{ height: `${total * ROW + 8}px` }}>
      ${rows.map(([at, row]) => html`<${Row} key=${row.id} row=${row} at=${at} total=${all} width=${width} isSelected=${at === selected} onSelect=${onSelect} />`)}
    </div>
  </div>`;
}

/** The line below the list: how many commits there are, and whether they are folded. */
export function ListFoot({ listing, place }) {
  const isFolded = place.fold !== "0";
  return html`<div class="foot">
    <span aria-live="polite">${counted(listing.commits, "commit")}${listing.complete ? "" : " …"}</span>
    <${Chip} aria-pressed=${Boolean(place.all)} onClick=${() => go({ all: place.all ? "" : "1", branch: "" })}>all branches</${Chip}>
    ${globalThis.vstateAnswers ? null : html`<${Chip} aria-pressed=${isFolded} title="fold runs of alike commits (f)"
      onClick=${() => go({ fold: isFolded ? "0" : "", open: "" })}>fold</${Chip}>`}
  </div>`;
}
