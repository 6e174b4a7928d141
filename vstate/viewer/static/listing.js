// The list of commits, in pages that are fetched as they come into sight.
import { get } from "./api.js";
import { useEffect, useMemo, useRef, useState } from "./preact.js";

const PAGE = 40;

/** The names in a place that choose which commits are listed. */
export const CONDITIONS = ["grep", "fkey", "info", "since", "until", "author"];

function queryOf(place) {
  return {
    rev: place.branch,
    all: place.all,
    key: place.fkey || undefined,
    grep: place.grep,
    info: place.info,
    since: place.since,
    until: place.until,
    author: place.author,
    fold: place.fold === "0" ? undefined : "1",
    open: place.open,
  };
}

/** The rows of a query, known so far. `state` changes when the refs do; `find` is a commit to look for. */
class Listing {
  constructor(query, changed) {
    this.query = query;
    this.changed = changed;
    this.error = null;
    this.isOver = false;
    this.reset();
  }

  reset() {
    this.view = null;
    this.rows = new Map();
    this.places = new Map();
    this.asked = new Set();
    this.known = 0;
    this.counted = 0;
    this.commits = 0;
    this.complete = false;
  }

  /** How many rows there are, as far as an answer knows. */
  learn({ known, commits, complete }) {
    this.commits = Math.max(this.commits, commits);
    this.counted = Math.max(this.counted, known);
    this.complete ||= complete;
    this.known = this.complete ? this.counted : Math.max(this.known, known);
  }

  /** Ask for the page with this row, once. */
  async need(at, extra = {}) {
    const first = Math.floor(at / PAGE) * PAGE;
    if (this.asked.has(first) && !extra.find) return;
    this.asked.add(first);
    try {
      const limit = PAGE;
      const answer = await get("/commits", { ...this.query, first, limit, view: this.view, ...extra });
      if (this.isOver) return;
      this.view ??= answer.view;
      answer.rows.forEach((row, number) => {
        this.rows.set(answer.first + number, row);
        this.places.set(row.id, answer.first + number);
      });
      if (Number.isInteger(answer.found)) for (const rev of [answer.sought, extra.find]) this.places.set(rev, answer.found);
      this.learn(answer);
      if (!this.complete && answer.rows.length < limit) this.asked.delete(first); // more may be known later
      this.error = null;
    } catch (error) {
      if (this.isOver) return;
      this.asked.delete(first);
      if (error.status === 410) {
        this.reset();
        await this.need(0);
        this.count();
        return;
      }
      this.error = error;
    }
    this.changed();
  }

  /** The place of the commit that a revision names, asking for it if it is not known; null if it is not here. */
  async seek(rev) {
    if (!this.places.has(rev)) await this.need(0, { find: rev });
    return this.places.get(rev) ?? null;
  }

  /** Learn how long the list is, a little at a time. */
  async count() {
    while (!this.complete && !this.isOver && !this.error) {
      try {
        const answer = await get("/commits", { ...this.query, first: this.counted, limit: 1, count: 1, view: this.view });
        this.learn(answer);
      } catch {
        return;
      }
      this.changed();
      await new Promise((done) => setTimeout(done, 50));
    }
  }
}

/** The listing of a place; a new one when the place or the refs change. The old one is shown until then. */
export function useListing(place, refs) {
  const query = queryOf(place);
  const name = JSON.stringify([query, refs]);
  const [, setDrawn] = useState(0);
  const redraw = () => setDrawn((drawn) => drawn + 1);
  const current = useRef(null);
  const next = useMemo(() => new Listing(query, redraw), [name]);
  useEffect(() => {
    next.need(0).then(() => {
      if (next.isOver) return;
      const before = current.current;
      if (before && before !== next) {
        before.isOver = true;
        // The same list with newer commits is as long at least: nobody who has scrolled is thrown back.
        if (!next.complete && JSON.stringify(before.query) === JSON.stringify(query)) next.known = Math.max(next.known, before.known);
      }
      current.current = next;
      redraw();
      next.count();
    });
    return () => { if (current.current !== next) next.isOver = true; };
  }, [next]);
  return current.current ?? next;
}
