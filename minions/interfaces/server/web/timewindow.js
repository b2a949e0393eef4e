// Which part of a run's timeline is shown: chosen by buttons and keys, kept in the address.

import { duration, h } from "./dom.js";
import { go, here } from "./address.js";

const STEP = 2, MOST = 1000; // the shortest part is a thousandth
const NUMBER = String.raw`(\d{1,12}(?:\.\d{1,3})?)`, WRITTEN = new RegExp(`^${NUMBER}-${NUMBER}$`);

export class TimeWindow {
	/** `middleOf()`: where the picked step is, as a part of the timeline; null: none is picked. */
	constructor(middleOf) {
		Object.assign(this, { middleOf, total: 1, breaks: [], from: 0, to: Number.POSITIVE_INFINITY });
		this.word = h("span.tabular.muted", { role: "status", "aria-label": "Timeline" });
		const button = (text, label, act) => h("button.quiet", { "aria-label": label, title: label, onclick: act }, text);
		this.tools = h("span.row.zoom",
			button("‹", "Earlier", () => this.move(-0.5)), button("−", "Shrink the timeline", () => this.by(STEP)), this.word,
			button("+", "Enlarge the timeline", () => this.by(1 / STEP)), button("›", "Later", () => this.move(0.5)), button("All", "All of the timeline", () => this.keep(0, this.total)));
	}

	/** The part that the address names. */
	read(query) {
		const found = WRITTEN.exec(query.get("time") ?? "");
		const [from, to] = found ? [Number(found[1]), Number(found[2])] : [0, 0];
		[this.from, this.to] = from < to ? [from, to] : [0, Number.POSITIVE_INFINITY];
	}

	/** What addresses of the page say of it: `time=FROM-TO`, in milliseconds of the timeline; empty: the whole of it is shown. */
	get written() {
		return this.to === Number.POSITIVE_INFINITY ? "" : `time=${this.from}-${this.to}`;
	}

	/** Take the timeline as it is now: that of a run grows. */
	show({ total, breaks }) {
		Object.assign(this, { total, breaks });
		const { from, to } = this.part;
		this.word.textContent = to - from < total ? `${Number((total / (to - from)).toPrecision(2))} ×` : "all";
	}

	/** The part within the timeline; one that lies behind its end is none. */
	get part() {
		if (this.from >= this.total) return { from: 0, to: this.total };
		return { from: this.from, to: Math.min(this.to, this.total) };
	}

	/** Where a part of the whole timeline lies in what is shown, from 0 to 1; outside of it less or more. */
	place(share) {
		const { from, to } = this.part;
		return (share * this.total - from) / (to - from);
	}

	/** The times at both ends and in the middle, without the breaks in which nothing ran. */
	labels() {
		const { from, to } = this.part;
		return [from, (from + to) / 2, to].map((at) => {
			const ms = this.breaks.reduce((sum, each) => sum - Math.max(0, Math.min(at, each.to * this.total) - each.from * this.total), at);
			return ms ? duration(ms) : "0";
		});
	}

	/** A part so many times as long, around the picked step where it is in sight, else around the middle. */
	by(factor) {
		const { from, to } = this.part, middle = this.middleOf(), length = Math.max((to - from) * factor, this.total / MOST);
		const isSeen = middle !== null && this.place(middle) >= 0 && this.place(middle) <= 1;
		const begin = (isSeen ? middle * this.total : (from + to) / 2) - length / 2;
		this.keep(begin, begin + length);
	}

	move(share) {
		const { from, to } = this.part, way = (to - from) * share;
		this.keep(from + way, to + way);
	}

	/** Shows what lies within the timeline of such a part, as long as it was. */
	keep(from, to) {
		const length = to - from, begin = Math.min(Math.max(0, from), Math.max(0, this.total - length));
		const { path, query } = here();
		query.delete("time");
		if (length < this.total * 0.999) query.set("time", [begin, begin + length].map((ms) => Number(ms.toFixed(3))).join("-"));
		const rest = query.toString();
		go(`/${path.map(encodeURIComponent).join("/")}${rest && "?"}${rest}`, { replace: true });
	}

	key(event) {
		if (event.ctrlKey || event.metaKey || event.altKey) return;
		const act = { "+": () => this.by(1 / STEP), "=": () => this.by(1 / STEP), "-": () => this.by(STEP), 0: () => this.keep(0, this.total), ArrowLeft: () => this.move(-0.5), ArrowRight: () => this.move(0.5) }[event.key];
		if (!act) return;
		event.preventDefault();
		act();
	}
}
