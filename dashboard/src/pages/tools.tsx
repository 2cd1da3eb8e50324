// The tools that agents get, by where they come from.

import { get } from "../api/http";
import type { McpServer } from "../api/types";
import { t } from "../i18n";
import { Empty, Link, Loaded, Panel, StateBadge, Tag, useLoaded } from "../ui/basics";
import { Table } from "../ui/table";

interface Tool {
  name: string;
  description: string;
  origin: string;
  read_only: boolean;
}

export function Tools() {
  const loaded = useLoaded("tools", (signal) => get<{ tools: Tool[] }>("/v1/tools", { signal }));
  return (
    <>
      <h1>{t("Tools")}</h1>
      <p className="dim">{t("What a model can call. Tools of a provider or a skill appear only with its boxes, and cannot be switched like built-in ones.")}</p>
      <Loaded of={loaded}>
        {({ tools }) => <>{[...new Set(tools.map((tool) => tool.origin))].map((origin) => <Origin key={origin} origin={origin} tools={tools.filter((tool) => tool.origin === origin)} />)}</>}
      </Loaded>
      <Hosted />
    </>
  );
}

function Origin({ origin, tools }: { origin: string; tools: Tool[] }) {
  const [kind, name] = origin.split(":", 2);
  const title = origin === "" ? t("Built in") : kind === "skill" ? t("Of skill {name}", { name: name ?? "" }) : t("Of provider {name}", { name: name ?? "" });
  return (
    <Panel title={title} side={origin ? <Tag tone="amber">{origin}</Tag> : null}>
      <Table
        label={title}
        columns={[{ title: t("Tool"), className: "mono nowrap" }, { title: t("Description"), className: "break" }, { title: t("Changes"), className: "nowrap" }]}
        rows={tools.map((tool) => ({ key: tool.name, cells: [tool.name, tool.description, tool.read_only ? t("nothing") : t("boxes")] }))}
      />
    </Panel>
  );
}

function Hosted() {
  const loaded = useLoaded("mcp", (signal) => get<{ servers: McpServer[] }>("/v1/mcp-servers", { signal }));
  return (
    <Panel title={t("Of MCP servers")} side={<Link to="/mcp-servers">{t("MCP servers")}</Link>}>
      <Loaded of={loaded}>
        {({ servers }) => servers.length === 0 ? <Empty title={t("No MCP server is registered.")} /> : (
          <ul className="list">
            {servers.map((server) => (
              <li key={server.name}>
                <Link to={`/mcp-servers/${encodeURIComponent(server.name)}`}>{server.name}</Link>
                <StateBadge state={server.state} />
                <span className="dim">{server.tools === null ? t("not listed yet") : t("{count} tools", { count: server.tools })}</span>
              </li>
            ))}
          </ul>
        )}
      </Loaded>
    </Panel>
  );
}
