// The recipe that does again what a run did: what it saves, where its values come from, its text.

import { post } from "./api.js";
import { action, callout, copyButton, fill, h, plural, tag } from "./dom.js";
import { drawing } from "./graph.js";

const WORKED = new Set(["completed", "partial"]);

export class Capture {
	/** `path`: of the run in the API. */
	constructor(path) {
		Object.assign(this, { path, answers: {} });
		this.said = h("div", { role: "alert" });
		this.found = h("div.stack");
		this.ask = h("div.row", action("Capture as a recipe…", () => this.load(), { title: "Writes the recipe that does the same again; nothing is stored" }));
		this.el = h("section.panel.rollback", { "aria-labelledby": "capture-title", hidden: true },
			h("h2", { id: "capture-title", tabindex: "-1", text: "Capture" }), this.ask, this.found, this.said);
	}

	show(view, status) {
		this.el.hidden = !WORKED.has(status) || !view.steps.some((step) => step.facts?.tool_calls > 0);
	}

	async load() {
		fill(this.said);
		let found;
		try {
			found = await post(`${this.path}/capture`, { answers: this.answers });
		} catch (error) {
			fill(this.said, callout("bad", error.title, error.message, error.code));
			return;
		}
		fill(this.found, this.report(found));
		this.el.querySelector("h2").focus();
	}

	report(found) {
		return [
			h("p.row", found.proved ? tag("good", "proved") : tag("wait", "not proved"),
				`The agent made ${plural(found.agent_model_calls, "model call")} (${plural(found.agent_tokens, "token")}); the recipe makes ${found.recipe_model_calls || "none"}.`),
			found.questions.map((each) => this.question(each)),
			!found.questions.length && found.problems.map((text) => h("p.hint", text)),
			h("details", h("summary", "Where its values come from"),
				h("ul.plain.files", found.evidence.map((each) => h("li", tag("open", each.how), h("span", h("code", each.place), " ", each.source, h("span.hint", each.because)))),
					found.left_out.map((each) => h("li", tag("gone", "left out"), h("span", h("code", each.tool), " ", JSON.stringify(each.arguments), h("span.hint", each.reason)))))),
			found.picture && h("div.picture", { role: "region", "aria-label": "Picture of the captured recipe", tabindex: "0" }, drawing(found.picture, "Steps of the captured recipe")),
			h("h3", "Recipe"),
			h("div.code", h("pre", { tabindex: "0", "aria-label": "Recipe" }, found.recipe), copyButton(found.recipe, "recipe"))];
	}

	question({ place, value, choices }) {
		const pick = (choice) => {
			this.answers[place] = choice;
			return this.load();
		};
		return h("fieldset", h("legend", h("code", place), ` was ${value}. Where does it come from?`),
			h("div.row", choices.map((choice) => action(choice, () => pick(choice)))));
	}
}
