// The login screen.

import { post } from "./api.js";
import { h } from "./dom.js";

export class Login {
  constructor(page) {
    const field = h("input", {
      type: "password",
      id: "token",
      autocomplete: "current-password",
      required: true,
      "aria-describedby": "token-help",
    });
    const problem = h("p", { class: "problem", role: "alert" });
    const button = h("button", { type: "submit", class: "primary" }, "Log in");
    const submit = async (event) => {
      event.preventDefault();
      button.disabled = true;
      try {
        await post("login", { token: field.value.trim() });
        await page.restart();
      } catch (error) {
        problem.textContent = error.status === 401 ? "This token is invalid." : error.message;
        button.disabled = false;
        field.select();
      }
    };
    this.element = h(
      "form",
      { class: "panel login", onsubmit: submit },
      h("h1", {}, "Log in"),
      h("label", { for: "token" }, "Token"),
      field,
      h(
        "p",
        { class: "muted", id: "token-help" },
        "Ask the administrator of this server. The token is set in POLYAFOREST_ADMIN_TOKEN, POLYAFOREST_READ_TOKEN or a file.",
      ),
      button,
      problem,
    );
    this._field = field;
  }

  get title() {
    return "Log in";
  }

  async load() {
    this._field.focus();
  }

  close() {}
}
