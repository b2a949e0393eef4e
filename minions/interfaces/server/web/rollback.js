// The files that a run changed: what a rollback did, and the button for one.

import { post } from "./api.js";
import { action, callout, changed, fill, h, note, plural, tag, time } from "./dom.js";

const ENDED = new Set(["completed", "partial", "failed", "cancelled", "limit_reached"]);
const OUTCOMES = {
	restored: ["good", "put back"],
	removed: ["good", "removed"],
	unchanged: ["gone", "as before"],
	changed_since: ["wait", "left"],
	refused: ["bad", "refused"],
};
const MOST = 200;

export class Rollback {
	/** `path`: of the run in the API; `onDone`: called after a rollback. */
	constructor(path, onDone) {
		Object.assign(this, { path, onDone, plan: null });
		this.said = h("div", { role: "alert" });
		this.el = h("section.panel.rollback", { "aria-labelledby": "files-title", hidden: true });
		this.reports = h("div.stack");
		this.ask = h("div.stack");
		fill(this.el, h("h2", { id: "files-title", tabindex: "-1", text: "Files" }), this.reports, this.ask, this.said);
	}

	show(view, status) {
		const rollbacks = view.notes.filter((each) => each.kind === "file_rollback");
		const can = view.has_file_changes && ENDED.has(status);
		if (!changed(this, "rollback", [rollbacks, can])) return;
		this.el.hidden = !can && !rollbacks.length;
		fill(this.reports, rollbacks.map(report));
		this.plan = null;
		fill(this.ask, can && this.button());
	}

	button() {
		return [
			h("p.muted", "The run recorded what the files were before it changed them."),
			h("div.row", action("Roll back files…", () => this.preview(), { needs: "admin", title: "Shows first what would be done" }))];
	}

	/** What would be done, with the question whether to do it. */
	async preview() {
		fill(this.said);
		let plan;
		try {
			plan = await post(`${this.path}/rollback`, { dry_run: true });
		} catch (error) {
			this.say(error);
			return;
		}
		const done = plan.files.filter(({ outcome }) => outcome === "restored" || outcome === "removed"), back = done.length;
		const folders = done.filter(({ path }) => path.endsWith("/")).length;
		const yes = action(`Roll back ${plural(back - folders || folders, back > folders ? "file" : "folder")}`, () => this.carryOut(), { class: "danger" });
		fill(this.ask,
			h("h3", { id: "rollback-question", tabindex: "-1" }, "This would be done"), outcomes(plan),
			h("div.row", { role: "group", "aria-labelledby": "rollback-question" }, back > 0 ? yes : h("p", "Nothing is left to roll back."), action("Cancel", () => this.cancel())));
		(back > 0 ? yes : this.ask.querySelector("button")).focus();
	}

	cancel() {
		fill(this.ask, this.button());
		this.ask.querySelector("button").focus();
	}

	async carryOut() {
		try {
			const done = await post(`${this.path}/rollback`, { dry_run: false });
			note(done.complete ? "The files are as they were." : "Rolled back, but not all of it.", done.complete ? "good" : "");
		} catch (error) {
			this.say(error);
			return;
		}
		this.shown = {};
		await this.onDone();
		this.el.querySelector("h2").focus();
	}

	say(error) {
		fill(this.said, callout("bad", error.title, error.message, error.code));
	}
}

/** A rollback that was recorded; `started` is one that was cut off. */
function report({ state, facts }) {
	const what = facts.within ? "Work of the run was rolled back" : "Rolled back";
	return h("article",
		h("p.row", state === "finished" ? tag("good", what) : tag("gone", "The rollback did not end"), facts.at && time(facts.at)),
		state === "finished" && outcomes(facts));
}

function outcomes({ files, not_reversible: calls }) {
	const rows = Array.isArray(files) ? files : [], left = rows.filter(({ reason }) => reason);
	const sorted = [...left, ...rows.filter((each) => !left.includes(each))];
	return [
		h("ul.plain.files", sorted.slice(0, MOST).map(({ path, root, outcome, reason }) => {
			const [kind, word] = OUTCOMES[outcome] ?? ["open", String(outcome)];
			return h("li", tag(kind, word), h("span", h("code", { title: `${root}/${path}` }, path), reason && h("span.hint", reason)));
		})),
		sorted.length > MOST && h("p.muted", `… and ${plural(sorted.length - MOST, "file")} more.`),
		calls?.length > 0 && [
			h("h3", "Not reversible"),
			h("ul.plain.files", calls.map(({ tool, address, effect }) => h("li", tag("wait", effect), h("span", h("code", tool), " in ", h("code", address)))))],
	];
}
