// Requests to the API in the name of the browser's session: the cookie goes by itself, changes carry its token.

import type { Session } from "./types";

export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly remedy = "",
    readonly details: Record<string, unknown> = {},
  ) {
    super(message);
  }
}

export interface Options {
  query?: Record<string, string | number | boolean | undefined>;
  body?: unknown;
  /** Raw content instead of a JSON body. */
  content?: Blob | ArrayBuffer | string;
  /** Act on every owner's boxes, without their lease. Only admins may, and each call is logged. */
  admin?: boolean;
  /** The call uses the box and needs its lease, though it is a GET. */
  uses?: boolean;
  headers?: Record<string, string>;
  signal?: AbortSignal;
}

let token = "";
let onSignedOut: () => void = () => undefined;

export function setToken(session: Session | null): void {
  token = session?.csrf ?? "";
}

export function whenSignedOut(listener: () => void): void {
  onSignedOut = listener;
}

export function url(path: string, query: Options["query"] = {}): string {
  const given = Object.entries(query).filter(([, value]) => value !== undefined);
  const text = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  return text ? `${path}?${text}` : path;
}

export async function open(method: string, path: string, options: Options = {}): Promise<Response> {
  const headers: Record<string, string> = { ...options.headers };
  if (options.admin) headers["Hutch-Admin"] = "yes";
  // Looking at a box must not extend its clocks or take its lease.
  if (method === "GET" && path.startsWith("/v1/boxes/") && !options.uses) headers["Hutch-Observe"] = "yes";
  if (method !== "GET" && token) headers["Hutch-Csrf"] = token;
  if (options.body !== undefined) headers["Content-Type"] = "application/json";
  let response: Response;
  try {
    response = await fetch(url(path, options.query), {
      method,
      headers,
      body: options.content ?? (options.body === undefined ? undefined : JSON.stringify(options.body)),
      credentials: "same-origin",
      cache: "no-store",
      signal: options.signal,
    });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new ApiError(0, "unreachable", "The server does not answer.", "Check that it runs, and your connection.");
  }
  if (response.ok) return response;
  const failure = await asError(response);
  if (failure.status === 401 && path !== "/v1/dashboard/session") onSignedOut();
  throw failure;
}

export async function request<T>(method: string, path: string, options: Options = {}): Promise<T> {
  const response = await open(method, path, options);
  const text = await response.text();
  return (text ? JSON.parse(text) : undefined) as T;
}

export const get = <T>(path: string, options?: Options) => request<T>("GET", path, options);
export const post = <T>(path: string, body: unknown = {}, options?: Options) =>
  request<T>("POST", path, { ...options, body });
export const remove = <T>(path: string, options?: Options) => request<T>("DELETE", path, options);

/** The messages of a server-sent stream, until it ends or is aborted. */
export async function* messages(path: string, options: Options = {}): AsyncGenerator<string> {
  const response = await open("GET", path, { ...options, headers: { Accept: "text/event-stream", ...options.headers } });
  for await (const block of pieces(response, "\n\n")) {
    if (block.startsWith("data: ")) yield block.slice(6);
  }
}

/** The lines of a streamed answer. */
export async function* lines(response: Response): AsyncGenerator<string> {
  yield* pieces(response, "\n");
}

async function* pieces(response: Response, separator: string): AsyncGenerator<string> {
  const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      const parts = (rest + value).split(separator);
      rest = parts.pop() ?? "";
      yield* parts;
    }
    if (rest) yield rest;
  } finally {
    reader.cancel().catch(() => undefined);
  }
}

async function asError(response: Response): Promise<ApiError> {
  try {
    const body = await response.json();
    return new ApiError(response.status, body.code, body.message, body.remedy, body.details ?? {});
  } catch {
    return new ApiError(response.status, "internal", `The server answered ${response.status}.`);
  }
}
