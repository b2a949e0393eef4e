// Starts `minions lsp` and shows what it says. All else is in the server.
"use strict";

const { workspace } = require("vscode");
const { LanguageClient } = require("vscode-languageclient/node");

let client;

async function activate(context) {
  const [command, ...args] = workspace.getConfiguration("minions").get("command");
  client = new LanguageClient(
    "minions",
    "Minions recipes",
    { command, args },
    {
      documentSelector: [{ language: "yaml" }, { language: "minions" }],
      synchronize: { fileEvents: workspace.createFileSystemWatcher("**/{*.yaml,minions.toml}") },
    },
  );
  context.subscriptions.push(client);
  await client.start();
}

async function deactivate() {
  await client?.stop();
}

module.exports = { activate, deactivate };
