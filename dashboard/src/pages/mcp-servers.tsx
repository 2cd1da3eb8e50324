// MCP servers in boxes: their phases, tools and logs; start, stop, and try a tool.

import { useState } from "react";
import { get, post, remove } from "../api/http";
import type { McpServer, McpTool } from "../api/types";
import { age } from "../format";
import { t } from "../i18n";
import { live } from "../live";
import { navigate } from "../router";
import { may } from "../session";
import { Button, Empty, ErrorNotice, Facts, Field, Link, Loaded, Notice, Panel, Select, StateBadge, Tag, useLoaded } from "../ui/basics";
import { useNow } from "../ui/clock";
import { ActionDialog, attempt } from "../ui/dialog";

const observers = () => !may("change") && t("Observers look, and change nothing.");

export function McpServers({ name }: { name?: string }) {
  const changes = live.use((state) => state.events[0]?.seq ?? 0);
  const [adding, setAdding] = useState(false);
  const loaded = useLoaded("mcp", (signal) => get<{ servers: McpServer[] }>("/v1/mcp-servers", { signal }), changes);
  const now = useNow();
  return (
    <>
      <div className="bar">
        <h1>{t("MCP servers")}</h1>
        <span className="grow" />
        <Button onClick={loaded.reload}>{t("Refresh")}</Button>
        <Button kind="primary" onClick={() => setAdding(true)} blocked={observers() || (!may("create") && t("Your key may not create boxes."))}>{t("Add a server")}</Button>
      </div>
      <Loaded of={loaded}>
        {({ servers }) => servers.length === 0 ? <Empty title={t("No MCP server is registered.")}>{t("Each one runs in a box of its own, behind one gateway at /mcp/gateway.")}</Empty> : (
          <div className="split">
            <ul className="choices" aria-label={t("MCP servers")}>
              {servers.map((server) => (
                <li key={server.name}>
                  <button type="button" aria-pressed={name === server.name} onClick={() => navigate(`/mcp-servers/${encodeURIComponent(server.name)}`)}>
                    <span className="cut strong">{server.name}</span>
                    <span className="line"><StateBadge state={server.state} />{server.phase && <Tag>{server.phase}</Tag>}<small className="dim">{age(server.since, now)}</small></span>
                  </button>
                </li>
              ))}
            </ul>
            <OneServer key={name} server={servers.find((each) => each.name === name)} reload={loaded.reload} />
          </div>
        )}
      </Loaded>
      {adding && <AddServer onClose={() => setAdding(false)} done={loaded.reload} />}
    </>
  );
}

function OneServer({ server, reload }: { server: McpServer | undefined; reload: () => void }) {
  const [removing, setRemoving] = useState(false);
  if (!server) return <Empty title={t("Choose a server to see it.")} />;
  const path = `/v1/mcp-servers/${encodeURIComponent(server.name)}`;
  const act = (action: string, done: string) => () => void attempt(done, () => post(`${path}/${action}`)).then(reload);
  const running = server.state === "ready" || server.state === "starting";
  return (
    <div className="stack">
      <Panel title={server.name} side={<>
        {running ? <Button onClick={act("stop", t("Stopped"))} blocked={observers()}>{t("Stop")}</Button> : <Button onClick={act("start", t("Started"))} blocked={observers()}>{t("Start")}</Button>}
        <Button onClick={act("restart", t("Restarted"))} blocked={observers()}>{t("Restart")}</Button>
        <Button kind="danger" onClick={() => setRemoving(true)} blocked={observers() || (!may("destroy") && t("Your key may not destroy boxes."))}>{t("Remove")}</Button>
      </>}>
        {server.error && <Notice tone="error" title={`${server.error.phase}: ${server.error.message}`}>{server.error.remedy}</Notice>}
        <Facts rows={[
          [t("State"), <StateBadge state={server.state} />],
          [t("Phase"), server.phase ?? ""],
          [t("Box"), server.box ? <Link to={`/boxes/${server.box}`} className="mono">{server.box.slice(0, 12)}</Link> : ""],
          [t("Command"), <span className="mono break long" tabIndex={0}>{server.command.join(" ") || server.url}</span>],
          [t("Environment"), server.env.join(", ")],
          [t("Starts"), `${server.starts}${server.retries ? ` (${t("{count} failed since", { count: server.retries })})` : ""}`],
          [t("Defined in"), server.origin],
          [t("Description"), server.description],
        ]} />
      </Panel>
      <TryTool server={server} path={path} />
      <Logs path={path} state={server.state + server.starts} />
      {removing && (
        <ActionDialog title={t("Remove {name}", { name: server.name })} action={t("Remove")} danger onClose={() => setRemoving(false)}
          run={async () => { await remove(path); navigate("/mcp-servers"); reload(); }}>
          <p>{t("The server is stopped, its box destroyed, and its definition forgotten.")}</p>
        </ActionDialog>
      )}
    </div>
  );
}

function TryTool({ server, path }: { server: McpServer; path: string }) {
  const loaded = useLoaded(`${path} ${server.state}`, (signal) => (server.state === "ready" ? get<{ tools: McpTool[] }>(`${path}/tools`, { signal }) : Promise.resolve({ tools: [] })));
  const [tool, setTool] = useState("");
  const [text, setText] = useState("{}");
  const [answer, setAnswer] = useState<{ value?: unknown; error?: unknown; busy?: boolean }>({});
  if (server.state !== "ready" || !may("change")) return null;
  const run = () => {
    let given: unknown;
    try {
      given = JSON.parse(text);
    } catch {
      setAnswer({ error: new Error(t("The arguments are not JSON.")) });
      return;
    }
    setAnswer({ busy: true });
    post(`${path}/call`, { tool: tool || loaded.value?.tools[0]?.name, arguments: given }).then((value) => setAnswer({ value }), (error: unknown) => setAnswer({ error }));
  };
  return (
    <Panel title={t("Tools")}>
      <Loaded of={loaded}>
        {({ tools }) => tools.length === 0 ? <Empty title={t("It has no tools.")} /> : <>
          <div className="form">
            <Field label={t("Tool")} hint={(tools.find((each) => each.name === tool) ?? tools[0])!.description}>
              {(id) => <Select id={id} value={tool} onChange={setTool} options={tools.map((each) => [each.name, each.name])} />}
            </Field>
            <Field label={t("Arguments (JSON)")}>{(id) => <textarea id={id} className="mono" rows={4} value={text} onChange={(event) => setText(event.target.value)} spellCheck={false} />}</Field>
          </div>
          <Button kind="primary" onClick={run} disabled={answer.busy}>{answer.busy ? t("Working…") : t("Call the tool")}</Button>
          {answer.error !== undefined && <ErrorNotice error={answer.error} />}
          {answer.value !== undefined && <pre className="output" tabIndex={0}>{JSON.stringify(answer.value, null, 2)}</pre>}
        </>}
      </Loaded>
    </Panel>
  );
}

function Logs({ path, state }: { path: string; state: string }) {
  const loaded = useLoaded(path, (signal) => get<{ lines: string[] }>(`${path}/logs`, { signal }), state);
  return (
    <Panel title={t("Logs")} side={<Button onClick={loaded.reload}>{t("Refresh")}</Button>}>
      <Loaded of={loaded}>{({ lines }) => lines.length ? <pre className="output" tabIndex={0}>{lines.join("\n")}</pre> : <Empty title={t("It has written nothing beside the protocol.")} />}</Loaded>
    </Panel>
  );
}

function AddServer({ onClose, done }: { onClose: () => void; done: () => void }) {
  const [name, setName] = useState("");
  const [command, setCommand] = useState("");
  const [network, setNetwork] = useState("");
  const run = async () => {
    const [program, ...args] = command.trim().split(/\s+/);
    await post("/v1/mcp-servers", { name, definition: { command: program, args, ...(network ? { network } : {}) } });
    done();
    navigate(`/mcp-servers/${encodeURIComponent(name)}`);
  };
  return (
    <ActionDialog title={t("Add a server")} action={t("Add")} onClose={onClose} run={run} ready={Boolean(name && command.trim())}>
      <div className="form">
        <Field label={t("Name")}>{(id) => <input id={id} autoFocus value={name} onChange={(event) => setName(event.target.value)} />}</Field>
        <Field label={t("Command")} hint="npx -y @modelcontextprotocol/server-everything">{(id) => <input id={id} className="mono" value={command} onChange={(event) => setCommand(event.target.value)} />}</Field>
        <Field label={t("Network")}>{(id) => <Select id={id} value={network} onChange={setNetwork} options={[["", t("by the profile")], ["off", "off"], ["on", "on"]]} />}</Field>
      </div>
    </ActionDialog>
  );
}
