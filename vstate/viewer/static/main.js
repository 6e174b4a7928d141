// The page: three panes, and the keyboard.
import { Actions } from "./actions.js";
import { named, nameOf, revisionsOf, shown, useAnswer } from "./api.js";
import { Branches } from "./branches.js";
import { CommitHead } from "./commit.js";
import { CommitList, ListFoot } from "./commits.js";
import { DiffView, KeyDiff } from "./diff.js";
import { conditionsOf, Filter, textOfConditions } from "./filter.js";
import { Health } from "./health.js";
import { Help } from "./help.js";
import { KeyTree } from "./keys.js";
import { Blame, Life } from "./life.js";
import { useListing } from "./listing.js";
import { useRefs } from "./live.js";
import { MergeTry } from "./merge.js";
import { isPinned, Pins, togglePin } from "./pins.js";
import { go, hrefOf, readPlace, usePlace } from "./place.js";
import { html, render, useEffect, useRef, useState } from "./preact.js";
import { Crumbs, Value } from "./value.js";
import { Chip, Failure } from "./widgets.js";

const TABS = [["", "Value", "v"], ["diff", "Diff", "d"], ["life", "Life", "l"], ["blame", "Blame", "b"]];

/** The place with a run of alike commits unfolded. */
const unfolded = (row) => ({ open: [readPlace().open, row.id].filter(Boolean).join(",") });

function switchTheme() {
  const { dataset } = document.documentElement;
  const isDark = dataset.theme ? dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  dataset.theme = isDark ? "light" : "dark";
  try {
    localStorage.setItem("vstate-theme", dataset.theme);
  } catch { /* a page opened from a file may have no storage */ }
}

function restoreTheme() {
  try {
    const theme = localStorage.getItem("vstate-theme");
    if (theme) document.documentElement.dataset.theme = theme;
  } catch { /* as above */ }
}

/** Against which commit the diff is: another revision, its merge base with this one, or the parent. */
function Against({ place, refs }) {
  const choose = (event) => go({ against: event.target.value });
  const names = revisionsOf(refs).flat();
  return html`<span class="against">
    <label>against <input list="revisions" value=${place.against ?? ""} placeholder="the parent" size="14" onChange=${choose} spellcheck=${false} /></label>
    <datalist id="revisions">${names.slice(0, 500).map((name) => html`<option value=${name} />`)}</datalist>
    ${place.against && html`<${Chip} aria-pressed=${place.base === "1"} onClick=${() => go({ base: place.base ? "" : "1" })}>merge base</${Chip}>`}
    <${Chip} aria-pressed=${place.beside === "1"} title="side by side (s)" onClick=${() => go({ beside: place.beside ? "" : "1" }, { replace: true })}>side by side</${Chip}>
  </span>`;
}

function Content({ place, rev, tip, refs, store, state }) {
  if (place.page === "merge") return html`<${MergeTry} place=${place} refs=${refs} store=${store} state=${state} />`;
  if (place.page === "branches") return html`<${Branches} refs=${refs} />`;
  if (place.page === "health") return html`<${Health} />`;
  // An exported file has no blame, and the versions of whole keys only.
  const isIn = (id) => !globalThis.vstateAnswers || (id !== "blame" && !(id === "life" && place.path));
  const tab = isIn(place.tab) ? place.tab ?? "" : "";
  const diff = { old: place.against, base: place.base, rev, isBeside: place.beside === "1" };
  const name = place.key;
  const hasKey = name !== undefined;
  const tabs = TABS.filter(([id]) => (hasKey ? isIn(id) : id === "diff"));
  const body = !rev
    ? refs?.branches.length === 0 && html`<p class="empty">This store has no commits yet. They appear here as programs make them.</p>`
    : !hasKey
      ? html`<${DiffView} ...${diff} />`
      : tab === "diff"
        ? html`<p class="facts"><a href=${hrefOf({ key: null, path: "" })}>all keys</a></p><${KeyDiff} ...${diff} name=${name} />`
        : tab === "life"
          ? html`<${Life} from=${place.path ? rev : tip ?? rev} rev=${rev} name=${name} path=${place.path} />`
          : tab === "blame"
            ? html`<${Blame} rev=${rev} name=${name} path=${place.path} />`
            : html`<${Value} rev=${rev} name=${name} path=${place.path} since=${place.against} />`;
  return html`
    <${CommitHead} rev=${rev}><${Actions} rev=${rev} place=${place} store=${store} refs=${refs} /></${CommitHead}>
    <${Pins} rev=${rev} place=${place} />
    <div class="content-bar">
      ${hasKey ? html`<${Crumbs} name=${name} path=${place.path} />` : html`<nav class="crumbs"><span>${place.against ? "Changes" : "Changes of this commit"}</span></nav>`}
      ${hasKey && html`<${Chip} aria-pressed=${isPinned(place, name, place.path)} title="keep in sight (p)" onClick=${() => togglePin(place, name, place.path)}>pin</${Chip}>`}
      ${rev && (tab === "diff" || !hasKey) ? html`<${Against} place=${place} refs=${refs} />` : null}
      <div class="tabs" role="tablist" aria-label="Views">
        ${tabs.map(([id, label, key]) => html`<button type="button" role="tab" id=${`tab-${id}`} aria-selected=${(hasKey ? tab : "diff") === id} aria-controls="content-body" title=${`${label} (${key})`} onClick=${() => go({ tab: id })}>${label}</button>`)}
      </div>
    </div>
    <div class="content-body" id="content-body" tabindex="0" role=${hasKey ? "tabpanel" : "region"} aria-label="Details">${body}</div>`;
}

function App() {
  const asked = usePlace();
  const [state, trouble] = useRefs();
  const [isHelp, setHelp] = useState(false);
  const { data: store } = useAnswer("/store");
  const { data: refs } = useAnswer("/refs");
  // Adapters leave HEAD's branch empty: the branches come first.
  const isFirst = store?.branches > 0 && !store.head.commit && !["branch", "all", "rev", "page", "tab", "pane"].some((name) => asked[name]);
  const place = isFirst ? { ...asked, page: "branches", pane: "value" } : asked;
  const listing = useListing(place, state);
  const [selected, drawSelected] = useState(null);
  const chosen = useRef(null); // at once, for keys that are held down
  const setSelected = (at) => {
    chosen.current = at;
    drawSelected(at);
  };
  const field = useRef(null);
  const steps = useRef({ move() {}, enter() {} });
  const tip = listing.rows.get(0)?.id ?? null;
  const conditions = textOfConditions(place);
  const isOfHead = listing.complete || !(place.branch || place.all || conditions);
  const head = store?.head.commit ?? refs?.branches.find((found) => found.name === store?.head.branch)?.commit;
  const rev = place.rev || tip || (isOfHead && head) || null;

  // The place of the chosen commit in the list; the newest one while nothing is chosen.
  useEffect(() => {
    let isWanted = true;
    const { rev } = readPlace(); // of now: another key may have been pressed since this was drawn
    const choose = (at) => {
      setSelected(at);
      const row = listing.rows.get(at); // a link may lead into a folded run
      if (row?.folded && row.id !== rev) go(unfolded(row), { replace: true });
    };
    if (!rev) setSelected(listing.known ? 0 : null);
    else if (listing.places.has(rev)) choose(listing.places.get(rev));
    else listing.seek(rev).then(async (at) => {
      if (at !== null) await listing.need(at);
      else if (isWanted && !conditions && !place.all) go({ all: "1", branch: "" }, { replace: true }); // of another branch
      if (isWanted) choose(at);
    });
    return () => { isWanted = false; };
  }, [place.rev, listing, listing.known > 0]);

  const select = async (at, options) => {
    if (!listing.rows.has(at)) await listing.need(at);
    const row = listing.rows.get(at);
    if (!row) return;
    setSelected(at);
    if (row.folded && row.id === place.rev && !options) go(unfolded(row));
    else go({ rev: row.id, pane: options ? place.pane : "keys" }, options);
  };
  const step = (by) => {
    const at = (chosen.current ?? 0) + by;
    if (at >= 0 && at < listing.known) select(at, { replace: true });
  };
  const openFold = () => {
    const row = listing.rows.get(chosen.current);
    if (row?.folded) go({ rev: row.id, ...unfolded(row) });
    return Boolean(row?.folded);
  };

  useEffect(() => {
    const press = (event) => {
      const target = event.target;
      if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
      if (target.matches("input, select, textarea")) return;
      const place = readPlace();
      const inList = target.closest(".commit-list");
      const keys = {
        ArrowLeft: () => step(1),
        ArrowRight: () => step(-1),
        ArrowDown: () => (inList ? step(1) : steps.current.move(1)),
        ArrowUp: () => (inList ? step(-1) : steps.current.move(-1)),
        Enter: () => (inList ? openFold() : steps.current.enter()),
        "/": () => field.current.focus(),
        "?": () => setHelp(true),
        v: () => go({ tab: "", page: "", pane: "value" }),
        d: () => go({ tab: "diff", page: "", pane: "value" }),
        l: () => (globalThis.vstateAnswers && place.path) || go({ tab: "life", page: "", pane: "value" }),
        b: () => globalThis.vstateAnswers || go({ tab: "blame", page: "", pane: "value" }),
        o: () => go({ only: place.only ? "" : "1" }, { replace: true }),
        p: () => place.key !== undefined && togglePin(place, place.key, place.path),
        f: () => go({ fold: place.fold === "0" ? "" : "0", open: "" }, { replace: true }),
        s: () => go({ beside: place.beside ? "" : "1" }, { replace: true }),
        n: () => go({ page: "branches", pane: "value" }),
        m: () => go({ page: "merge", pane: "value" }),
        h: () => go({ page: "health", pane: "value" }),
        g: () => go({ rev: "" }),
        t: switchTheme,
        Escape: () => go([
          [place.page, { page: "" }], [place.path, { path: "" }], [place.key !== undefined, { key: null, tab: "" }],
          [place.against, { against: "", base: "" }], [conditions, conditionsOf("")], [true, { rev: "" }],
        ].find(([isOn]) => isOn)[1]),
      };
      const action = keys[event.key];
      const scrolls = /^Arrow(Up|Down)$/.test(event.key) ? ".content-body" : /^Arrow/.test(event.key) ? ".table-box, pre, .elements" : null;
      if (!action || (scrolls && target.closest(scrolls))) return;
      if (event.key === "Enter" && target.closest("a, button")) return;
      event.preventDefault();
      action();
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  });

  const pane = place.pane ?? "commits";
  const isFollowing = !place.rev && !trouble;
  useEffect(() => {
    const about = place.page || (place.key !== undefined && `${named(place.key)} ${shown(place.path)}`.trim()) || (place.branch ? nameOf(place.branch) : store?.head.branch);
    document.title = [about, store?.name?.split("/").pop(), "vstate"].filter(Boolean).join(" · ");
  });
  return html`<main class=${`app pane-${pane}`}>
    <div class="bar">
      <h1 class="sr">The history of ${shown(store?.name ?? "a store")}</h1>
      <a class="brand" href="#/?" title="the newest commit"><svg viewBox="0 0 16 16" width="16" height="16" aria-hidden="true"><path d="M4 3v10M4 9c0-3 8-1 8-5" /><circle cx="4" cy="3" r="2" /><circle cx="4" cy="13" r="2" /><circle cx="12" cy="4" r="2" /></svg>vstate</a>
      <span class="store" title=${shown(store?.name)}>${shown(store?.name?.split("/").filter(Boolean).slice(-2).join("/"))}</span>
      <a class="chip branch" href=${hrefOf({ page: "branches", pane: "value" })} title="choose a branch (n)">${place.branch ? nameOf(place.branch) : `HEAD${store?.head.branch ? ` · ${nameOf(store.head.branch)}` : ""}`} ▾</a>
      <${Filter} place=${place} rev=${rev} field=${field} />
      <span class="grow"></span>
      <${Chip} aria-pressed=${isFollowing} title="show each new commit as it is made (g)" onClick=${() => go({ rev: isFollowing ? tip ?? "" : "" })}>${isFollowing ? "following" : "follow"}</${Chip}>
      ${globalThis.vstateAnswers ? null : html`<a class="chip" href=${hrefOf({ page: "merge", pane: "value" })} title="merge two branches on trial (m)">merge</a>
        <a class="chip" href=${hrefOf({ page: "health", pane: "value" })} title="sizes, gc, fsck, signatures (h)">health</a>`}
      <button type="button" class="icon" title="dark or light (t)" aria-label="dark or light" onClick=${switchTheme}>◐</button>
      <button type="button" class="icon" title="keys (?)" aria-label="help" onClick=${() => setHelp(true)}>?</button>
    </div>
    ${trouble && html`<p class="banner" role="alert">${shown(trouble)}</p>`}
    <section class="pane commits" aria-label="Commits">
      ${conditions && html`<p class="condition">filtered: <b>${shown(conditions)}</b> <a href=${hrefOf(conditionsOf(""))}>show all</a></p>`}
      <${Failure} error=${listing.error} />
      ${listing.complete && !listing.known && html`<p class="empty">${conditions ? "No commit meets these conditions." : "No commits yet."}</p>`}
      <${CommitList} listing=${listing} selected=${selected} onSelect=${select} />
      <${ListFoot} listing=${listing} place=${place} />
    </section>
    <${KeyTree} rev=${rev} place=${place} steps=${steps} />
    <section class="pane content" aria-label="Content"><${Content} place=${place} rev=${rev} tip=${tip} refs=${refs} store=${store} state=${state} /></section>
    <nav class="panes" aria-label="Panes">${[["commits", "Commits"], ["keys", "Keys"], ["value", "Content"]].map(([id, label]) => html`<button type="button" aria-pressed=${pane === id} onClick=${() => go({ pane: id }, { replace: true })}>${label}</button>`)}</nav>
    ${isHelp && html`<${Help} onClose=${() => setHelp(false)} />`}
  </main>`;
}

restoreTheme();
const root = document.getElementById("app");
root.textContent = "";
render(html`<${App} />`, root);
