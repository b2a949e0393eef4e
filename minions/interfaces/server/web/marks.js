// What people say of an output: good or bad. Good ones can be examples for later runs.

import { post } from "./api.js";
import { action, changed, fill, h, tag, time } from "./dom.js";

const LONGEST = 2000;

export class Marks {
	/** `path`: of the run in the API; `onDone`: called after a mark. */
	constructor(path, onDone) {
		Object.assign(this, { path, onDone, address: null });
		this.said = h("p.row");
		this.note = h("input", { type: "text", "aria-label": "Why it is good or bad", placeholder: "Why (optional)", maxlength: String(LONGEST), autocomplete: "off" });
		this.buttons = ["good", "bad"].map((verdict) => action(verdict === "good" ? "Mark good" : "Mark bad", () => this.mark(verdict), { needs: "decide", class: "quiet" }));
		this.el = h("div.marks", { role: "group", "aria-label": "Mark of the output", hidden: true }, this.said, h("div.row", this.buttons, this.note));
	}

	/** `address`: of a step or item; null: of the run. `can`: whether there is an output that is over. */
	show(view, address, can) {
		const marks = view.notes.filter(({ kind, step_id: at }) => kind === "mark" && at === (address ?? ""));
		if (!changed(this, "marks", [address, marks, can])) return;
		if (address !== this.address) this.note.value = "";
		this.address = address;
		this.el.hidden = !can && !marks.length;
		this.buttons.forEach((button) => (button.parentElement.hidden = !can));
		fill(this.said, marks.length > 0 && shown(marks.at(-1)));
	}

	async mark(verdict) {
		const note = this.note.value.trim() || null;
		await post(`${this.path}/marks`, { verdict, address: this.address, note });
		this.note.value = "";
		await this.onDone();
	}
}

/** The last mark; one that was imported counts for nothing here. */
function shown({ state, facts }) {
	const [kind, words] = facts.verdict === "good" ? ["good", "Marked good"] : ["bad", "Marked bad"];
	return [
		state === "imported" ? tag("gone", `${words} where it was exported from`) : tag(kind, words),
		facts.by && h("span", `by ${facts.by}`), time(facts.at), facts.note && h("span", facts.note)];
}
