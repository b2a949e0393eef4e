// A form from JSON Schemas: one field for each value, and what is wrong at the field.

import { callout, fill, h } from "./dom.js";

let numbers = 0;

function kindOf(schema) {
	const types = [schema.type ?? schema.anyOf?.map((each) => each.type) ?? []].flat().filter((type) => type !== "null");
	if (schema.enum) return "choice";
	if (types.length !== 1) return "json";
	return { string: "text", integer: "number", number: "number", boolean: "boolean" }[types[0]] ?? "json";
}

/** Words about what fits: `whole number, at least 0`. */
function constraint(schema, kind) {
	const words = [];
	if (kind === "json") words.push(schema.type === "array" ? "JSON list" : schema.type === "object" ? "JSON object" : "JSON");
	if (kind === "number") words.push(schema.type === "integer" ? "whole number" : "number");
	if (kind === "text" && schema.format) words.push(schema.format);
	if (schema.minimum !== undefined) words.push(`at least ${schema.minimum}`);
	if (schema.maximum !== undefined) words.push(`at most ${schema.maximum}`);
	if (schema.minLength > 1) words.push(`at least ${schema.minLength} characters`);
	if (schema.maxLength !== undefined) words.push(`at most ${schema.maxLength} characters`);
	return words.join(", ");
}

/** One labelled field. `spec`: name, schema, required, secret, default, description. */
export class Field {
	constructor(spec, label = spec.name) {
		const id = `field-${(numbers += 1)}`;
		this.spec = spec;
		this.kind = spec.secret ? "text" : kindOf(spec.schema ?? {});
		const hasDefault = !spec.required && spec.default !== null && spec.default !== undefined;
		this.input = this.control(spec, id, hasDefault);
		this.error = h("p.field-error", { id: `${id}-error`, hidden: true });
		const hint = spec.secret ? "a reference, never the value: env:NAME or file:/path" : constraint(spec.schema ?? {}, this.kind);
		this.el = h("div.field",
			h("label", { for: id }, label, spec.required ? h("span.muted", " required") : null),
			spec.description ? h("p.hint", { id: `${id}-about`, text: spec.description }) : null,
			this.input,
			hint ? h("p.hint", { id: `${id}-hint`, text: hint }) : null,
			this.error);
		const about = [spec.description && `${id}-about`, hint && `${id}-hint`, `${id}-error`].filter(Boolean);
		this.input.setAttribute("aria-describedby", about.join(" "));
		if (spec.required) this.input.setAttribute("aria-required", "true");
		this.input.addEventListener("input", () => this.say(null));
	}

	control(spec, id, hasDefault) {
		const common = { id, name: spec.name, autocomplete: "off" };
		const choices = this.kind === "boolean" ? [true, false] : this.kind === "choice" ? spec.schema.enum : null;
		if (choices) {
			const options = choices.map((each) => h("option", { value: JSON.stringify(each), text: this.kind === "boolean" ? (each ? "yes" : "no") : String(each) }));
			const blank = h("option", { value: "", text: spec.required ? "Choose…" : "default" });
			const select = h("select", common, hasDefault ? options : [blank, options]);
			if (hasDefault) select.value = JSON.stringify(spec.default);
			return select;
		}
		const shown = !hasDefault ? "" : this.kind === "text" ? String(spec.default) : JSON.stringify(spec.default, null, 2);
		if (this.kind === "json" || this.isLong(spec, shown)) {
			const area = h("textarea", { ...common, rows: this.kind === "json" ? "4" : "3", class: this.kind === "json" ? "mono" : "", spellcheck: this.kind === "json" ? "false" : "true" });
			area.value = shown;
			return area;
		}
		const input = h("input", { ...common, type: "text", inputmode: this.kind === "number" ? "decimal" : null, spellcheck: "false" });
		input.value = shown;
		return input;
	}

	isLong(spec, shown) {
		return this.kind === "text" && !spec.secret && !spec.schema?.format && (shown.length > 60 || /^(message|text|prompt|question|task|content)$/.test(spec.name));
	}

	write(value) {
		if (value === null || value === undefined) this.input.value = "";
		else this.input.value = this.kind === "text" ? String(value) : JSON.stringify(value, null, this.kind === "json" ? 2 : 0);
	}

	/** {value}, {} where nothing was said, or {problem}. */
	read() {
		const text = this.input.value;
		if (this.kind !== "text" && text.trim() === "") return this.missing();
		if (this.kind === "text") return text === "" && this.spec.required ? this.missing() : text === "" && !this.spec.default ? {} : { value: text };
		if (this.kind === "number") {
			const number = Number(text.trim());
			return Number.isFinite(number) ? { value: number } : { problem: "This is no number." };
		}
		try {
			return { value: JSON.parse(text) };
		} catch (error) {
			return { problem: `This is no JSON: ${error.message}` };
		}
	}

	missing() {
		return this.spec.required ? { problem: "This is needed." } : {};
	}

	say(message) {
		this.error.hidden = !message;
		this.error.textContent = message ?? "";
		if (message) this.input.setAttribute("aria-invalid", "true");
		else this.input.removeAttribute("aria-invalid");
	}
}

/** Fields for a recipe's inputs, or for a form. */
export class Fields {
	/** `values`: what they begin with, by name; others with their default. */
	constructor(specs, values = {}) {
		this.fields = specs.map((spec) => new Field(spec, spec.title));
		for (const field of this.fields) if (Object.hasOwn(values, field.spec.name)) field.write(values[field.spec.name]);
		this.top = h("div.field-errors", { role: "alert" });
		this.el = h("div.fields", this.top, this.fields.map((field) => field.el));
	}

	/** The values, or null when something is wrong, which is then said at its field. */
	read() {
		const values = {};
		let wrong = null;
		fill(this.top);
		for (const field of this.fields) {
			const { value, problem } = field.read();
			field.say(problem ?? null);
			if (problem) wrong ??= field;
			else if (value !== undefined) values[field.spec.name] = value;
		}
		wrong?.input.focus();
		return wrong ? null : values;
	}

	/** Put what the server says where it belongs: each line names the input it is about. */
	refuse(error) {
		const rest = [];
		let first = null;
		for (const line of error.message.split("\n")) {
			const field = this.fields.find((each) => line.includes(`input '${each.spec.name}'`));
			if (field) {
				field.say(field.error.textContent ? `${field.error.textContent}\n${line}` : line);
				first ??= field;
			} else if (line.trim()) rest.push(line);
		}
		fill(this.top, rest.length > 0 && callout("bad", null, rest.join("\n"), error.code));
		(first?.input ?? this.top).focus?.();
	}
}
