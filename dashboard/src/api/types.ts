// The records of the HTTP API that the dashboard reads (docs/reference/http.md).

export type Role = "admin" | "user" | "observer";
export type BoxState =
  | "creating" | "restoring" | "running" | "paused" | "stopping" | "stopped" | "error" | "unknown";

export interface Session {
  key_id: string;
  name: string;
  role: Role;
  owner: string;
  session: string;
  actions: string[];
  profiles: string[] | null;
  expires_at: number | null;
  csrf: string;
}

export interface Lease {
  holder: string;
  acquired_at: number;
  expires_at: number;
  seconds: number;
  key: string;
}

export interface Limits {
  cpus: number;
  memory_mb: number;
  pids: number;
  disk_mb: number;
  open_files: number;
  timeout_sec: number;
  max_timeout_sec: number;
}

export interface Adjustment {
  field: string;
  asked: string;
  given: string;
  reason: string;
}

export interface EffectiveSpec {
  profile: string;
  provider: string;
  image: string;
  workspace: { source: string; mode: string };
  workdir: string;
  user: string;
  mounts: { source: string; target: string; mode: string }[];
  env: Record<string, string>;
  secrets: Record<string, string>;
  network: string;
  allow_private: string[];
  limits: Limits;
  read_only_root: boolean;
  retention: "temporary" | "persistent";
  idle_timeout_sec: number;
  ttl_sec: number;
  labels: Record<string, string>;
  ports: number[];
  name: string;
  min_isolation: string;
  skills: string;
  adjustments: Adjustment[];
}

export interface BoxInfo {
  id: string;
  name: string;
  owner: string;
  state: BoxState;
  reason: string;
  provider: string;
  spec: EffectiveSpec;
  created_at: number;
  used_at: number;
  grace_sec: number;
  remaining_sec: number | null;
  epoch: number;
  lease: Lease | null;
  elsewhere: boolean;
}

export interface BoxEvent {
  seq: number;
  at: number;
  box_id: string;
  owner: string;
  kind: string;
  old: string;
  new: string;
  reason: string;
  cause: string;
}

export interface Status {
  state: "ready" | "degraded" | "disabled" | "unavailable" | "unreachable" | "draining";
  enabled: boolean;
  available: boolean;
  reason: string;
  remedy: string;
  provider: string;
  version: string;
  keeper: string;
  uptime_sec: number;
}

export interface Question {
  id: string;
  owner: string;
  asked_at: number;
  text: string;
  agent: string;
  tool: string;
  action: string;
  what: string;
  reason: string;
  arguments: Record<string, unknown>;
  box: string;
}

export interface Usage {
  wall_sec: number;
  cpu_user_sec: number;
  cpu_system_sec: number;
  memory_peak_mb: number | null;
  box_memory_peak_mb: number | null;
}

export interface Sample {
  at: number;
  /** Rates a second. */
  requests: number;
  failures: number;
  created: number;
  /** 95 % took at most this long; null if there was nothing to measure. */
  request_ms: number | null;
  exec_ms: number | null;
}

export interface Numbers {
  requests: number;
  failures: number;
  created: number;
  active: number;
  pool: Record<string, number>;
  pool_claims: number;
  pool_misses: number;
  samples: Sample[];
}

export interface LiveMessage {
  now: number;
  status?: Status;
  boxes: BoxInfo[];
  gone: string[];
  events: BoxEvent[];
  questions?: Question[];
  usages: Record<string, Usage>;
  numbers?: Numbers;
}

export interface Verdict {
  cause: string;
  message: string;
  remedy: string;
}

export interface Job {
  id: string;
  command: string[];
  state: "running" | "exited";
  pid: number;
  started_at: number;
  name: string;
  exit_code: number | null;
  signal: number | null;
  pty: boolean;
  timeout_sec: number | null;
  stdout_total: number;
  stderr_total: number;
  dropped: number;
  verdict: Verdict | null;
  usage: Usage | null;
}

export interface FileInfo {
  path: string;
  kind: string;
  size: number;
  mode: number;
  mtime: number;
  target?: string;
}

export interface Receipt {
  box: string;
  owner: string;
  seq: number;
  at: number;
  op: string;
  who?: { session?: string; role?: string; key?: string; request?: string; admin?: boolean };
  details?: Record<string, unknown>;
  error?: string;
  cause?: string;
  exit_code?: number | null;
  signal?: number | null;
  changed?: string[];
  duration_ms?: number;
  prev?: string;
  hash?: string;
}

export interface Chain {
  box: string;
  owner: string;
  count: number;
  head: string;
  begun_at: number;
  last_at: number;
  last_op: string;
  ended_at: number;
  pruned_at: number;
}

export interface Verified {
  ok: boolean;
  chains: { box: string; count: number; ok: boolean; broken: number | null; problem: string }[];
}

export interface Capabilities {
  provider: string;
  usable: boolean;
  reason: string;
  remedy: string;
  isolation: string;
  pause: string;
  networks: string[];
  images: string[];
  persistent: boolean;
  grades: Record<string, string>;
  missing: { what: string; reason: string; remedy: string }[];
  facts: Record<string, string>;
}

export interface Failure {
  at: number;
  request: string;
  op: string;
  status: number;
  code: string;
  message: string;
  box: string;
  owner: string;
}

export interface Key {
  id: string;
  name: string;
  role: Role;
  owner: string;
  created_at: number;
  revoked_at: number | null;
  rights: { profiles: string[] | null; actions: string[] | null; root: boolean | null; pull: boolean | null; maxima: Record<string, number | null> };
}

export interface Profile {
  name: string;
  [field: string]: unknown;
}

/** Limits over all boxes of one owner; 0 for no limit. */
export type Quota = Record<"boxes" | "cpus" | "memory_mb" | "disk_mb" | "volumes" | "volume_mb" | "skills", number>;

export interface Skill {
  name: string;
  description: string;
  digest: string;
  [field: string]: unknown;
}

export interface McpServer {
  name: string;
  transport: string;
  state: string;
  phase: string | null;
  boxed: boolean;
  box: string;
  retries: number;
  starts: number;
  since: number;
  error: { phase: string; code: string; message: string; remedy: string; at: number } | null;
  command: string[];
  url: string;
  env: string[];
  tools: number | null;
  origin: string;
  description: string;
}

export interface McpTool {
  server: string;
  name: string;
  description: string;
  schema: Record<string, unknown>;
}

export interface App {
  box_id: string;
  name: string;
  template: string;
  state: "creating" | "installing" | "starting" | "running" | "stopped" | "paused" | "failed" | "unknown";
  reason: string;
  remedy: string;
  port: number;
  /** The job that runs it; empty before it has one. */
  job: string;
  owner: string;
  created_at: number;
  started_at: number;
}

export interface AppTemplate {
  name: string;
  title: string;
  description: string;
  port: number;
  programs: string[];
  installs: boolean;
}
