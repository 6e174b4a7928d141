// What differs between two commits: by key, and inside a key by path.
import { get, grouped, named, shown, sizeText, typeText, useAnswer } from "./api.js";
import { Picture } from "./bytes.js";
import { Sign } from "./keys.js";
import { hrefOf } from "./place.js";
import { html, useState } from "./preact.js";
import { Failure, Tally, Twist, usePages, useSlow, Waiting } from "./widgets.js";

const MOST_OPEN = 8; // keys whose changes are shown at once
const PAGE = 200;

function Pieces({ pieces, sign }) {
  return pieces.map((piece) => (piece.is_changed ? html`<mark class=${sign === "-" ? "is-removed" : "is-added"}>${shown(piece.text)}</mark>` : shown(piece.text)));
}

/** The lines of two texts below each other. */
function Unified({ hunks }) {
  return html`<div class="hunks mono">${hunks.map((hunk) => html`
    <div class="hunk-head">lines ${hunk.old_line}–${hunk.old_line + Math.max(hunk.old_count - 1, 0)} → ${hunk.new_line}–${hunk.new_line + Math.max(hunk.new_count - 1, 0)}</div>
    ${hunk.lines.map((line) => html`<div class=${`line ${line.sign === "-" ? "is-removed" : line.sign === "+" ? "is-added" : ""}`}><span class="line-sign">${line.sign}</span>${line.column ? html`<span class="is-dim">…@${line.column} </span>` : null}<${Pieces} pieces=${line.pieces} sign=${line.sign} /></div>`)}`)}</div>`;
}

/** The lines of a hunk as pairs: a removed line beside the added line in its place. */
function pairsOf(lines) {
  const pairs = [];
  let removed = [];
  let added = [];
  const flush = () => {
    for (let i = 0; i < Math.max(removed.length, added.length); i += 1) pairs.push([removed[i] ?? null, added[i] ?? null]);
    removed = [];
    added = [];
  };
  for (const line of lines) {
    if (line.sign === "-") removed.push(line);
    else if (line.sign === "+") added.push(line);
    else {
      flush();
      pairs.push([line, line]);
    }
  }
  flush();
  return pairs;
}

function Beside({ hunks }) {
  const cell = (line, sign) => html`<td class=${line && line.sign === sign ? (sign === "-" ? "is-removed" : "is-added") : line ? "" : "is-none"}>${line ? html`<${Pieces} pieces=${line.pieces} sign=${line.sign} />` : ""}</td>`;
  return html`<table class="beside mono"><thead><tr><th scope="col">before</th><th scope="col">after</th></tr></thead><tbody>
    ${hunks.map((hunk) => pairsOf(hunk.lines).map(([old, now]) => html`<tr>${cell(old, "-")}${cell(now, "+")}</tr>`))}
  </tbody></table>`;
}

function Bytes({ changes }) {
  return html`<div class="hunks mono">${changes.map((change) => html`<div class="hunk-head">at byte ${grouped(change.offset)}: ${change.old_size} → ${change.new_size} bytes</div>
    <div class="line is-removed"><span class="line-sign">-</span>${change.old}</div><div class="line is-added"><span class="line-sign">+</span>${change.new}</div>`)}</div>`;
}

/** The pictures of both sides, beside each other. */
function Pictures({ detail, answer, name }) {
  const picture = (side) => detail[side] && html`<${Picture} key=${answer[side]} rev=${answer[side]} name=${name} path=${detail.path} />`;
  return html`<div class="sides is-beside">${picture("old")}${picture("new")}</div>`;
}

function Detail({ detail, isBeside, name, answer }) {
  const path = detail.path;
  const label = shown(path) || (detail.hunks ? "text" : "value");
  const where = html`<${Sign} change=${detail.kind} />${name === undefined ? html`<span class="detail-path mono">${label}</span>` : html`<a class="detail-path mono" href=${hrefOf({ key: name, path, tab: "" })}>${label}</a>`}${detail.note && html`<span class="is-dim"> ${shown(detail.note)}</span>`}`;
  const side = (part, kind) => part && html`<span class=${`side is-${kind} mono`}><span class="sr">${kind === "removed" ? "before: " : "after: "}</span>${part.kind === "text" ? `"${shown(part.text)}"` : shown(part.text)}</span>`;
  const body = detail.hunks
    ? html`<${isBeside ? Beside : Unified} hunks=${detail.hunks} />`
    : detail.pictures && answer.new
      ? html`<${Pictures} detail=${detail} answer=${answer} name=${name} />`
    : detail.bytes
      ? html`<${Bytes} changes=${detail.bytes} />`
      : html`<div class=${isBeside ? "sides is-beside" : "sides"}>${side(detail.old, "removed")}${side(detail.new, "added")}</div>`;
  return html`<li class="detail"><div class="detail-head">${where}</div>${body}</li>`;
}

/** The changes inside one key, from an answer; with links to the parts if the key is named. */
export function Details({ answer, name, isBeside }) {
  if (answer.error) return html`<p class="note">${shown(answer.error)}</p>`;
  return html`<ul class="details">
    ${answer.details.map((detail, at) => html`<${Detail} key=${`${detail.path} ${at}`} detail=${detail} isBeside=${isBeside} name=${name} answer=${answer} />`)}
    ${answer.details.length === 0 && html`<li class="is-dim">the same value, stored in another way</li>`}
    ${answer.more ? html`<li class="is-dim">… more than ${answer.details.length} changes</li>` : null}
  </ul>`;
}

export function KeyDiff({ old, rev, base, name, isBeside }) {
  const { data, error, loading } = useAnswer("/diff", { old, new: rev, base, key: name });
  const isSlow = useSlow(loading && `${old} ${rev} ${name}`);
  if (error) return html`<${Failure} error=${error} />`;
  if (!data || data.key !== name) return html`<${Waiting}>Comparing the values</${Waiting}>`;
  if (data.kind === null) return html`<p class="empty">No change here.</p>`;
  return html`<div class=${isSlow ? "is-stale" : ""}><${Details} answer=${data} name=${name} isBeside=${isBeside} /></div>`;
}

function ChangedKey({ change, old, rev, base, isBeside, isFirst }) {
  const [isOpen, setOpen] = useState(isFirst);
  const sizes = [change.old, change.new].map((side) => (side ? `${typeText(side.type)} ${sizeText(side.size)}` : null));
  const note = sizes[0] && sizes[1] && sizes[0] !== sizes[1] ? `${sizes[0]} → ${sizes[1]}` : sizes[1] ?? sizes[0];
  return html`<section class="changed-key">
    <h3><${Twist} isOpen=${isOpen} label=${change.key} onTurn=${setOpen} />
      <${Sign} change=${change.kind} /><a href=${hrefOf({ key: change.key, path: "", tab: change.kind === "removed" ? "diff" : "" })}>${named(change.key)}</a> <span class="is-dim">${note}</span></h3>
    ${isOpen && html`<${KeyDiff} old=${old} rev=${rev} base=${base} name=${change.key} isBeside=${isBeside} />`}
  </section>`;
}

export function DiffView({ old, rev, base, isBeside }) {
  const params = { old, new: rev, base, limit: PAGE };
  const { data, error } = useAnswer("/diff", params);
  const [pages, button] = usePages(data, (first) => get("/diff", { ...params, first }), () => "more keys");
  if (error) return html`<${Failure} error=${error} />`;
  if (!data) return html`<${Waiting}>Comparing</${Waiting}>`;
  const changes = pages.flatMap((page) => page.changes);
  return html`<div class="diff">
    <p class="facts"><${Tally} counts=${data.counts} />
      ${data.base && html`<span>against the merge base <a class="mono" href=${hrefOf({ rev: data.base })}>${data.base.slice(0, 10)}</a></span>`}</p>
    ${changes.length ? null : html`<p class="empty">Nothing differs.</p>`}
    ${changes.map((change, at) => html`<${ChangedKey} key=${`${data.new} ${change.key}`} change=${change} old=${data.old ?? old} rev=${data.new} isBeside=${isBeside} isFirst=${at < MOST_OPEN} />`)}
    ${button}
  </div>`;
}
