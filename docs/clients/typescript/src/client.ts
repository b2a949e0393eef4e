import {
  Operations,
  type ApprovalView,
  type Call,
  type CallOptions,
  type DecisionRequest,
  type Problem,
  type RunEvent,
  type RunRequest,
  type RunView,
} from "./api.js";

/** Where the server is, and what stands between it and this program. */
export type ClientOptions = {
  /** The address of `minions serve`, or of the path at which an app is mounted. */
  readonly url: string;
  /** The token, or a function that gives it before each request. */
  readonly token: string | (() => string | Promise<string>);
  /** Sends requests; else the global `fetch`. */
  readonly fetch?: typeof globalThis.fetch;
  /** Waits before a stream is opened again; else a timer. */
  readonly sleep?: (milliseconds: number) => Promise<void>;
};

export type FollowOptions = CallOptions & {
  /** The position after which events are wanted; 0: from the first on. */
  readonly after?: number;
};

export type FinishOptions = FollowOptions & {
  /** Is given each event once; an event without `position` is a piece of an answer. */
  readonly onEvent?: (event: RunEvent) => void;
  /** Decides what the run waits for; undefined leaves it to somebody else. */
  readonly decide?: (
    waiting: ApprovalView,
  ) => DecisionRequest | undefined | Promise<DecisionRequest | undefined>;
};

export type RunOptions = FinishOptions & {
  /** The same key and request is the same run, however often it is sent; else a new key. */
  readonly idempotencyKey?: string;
};

/** The server refused a request, or answered what is no answer of its own. */
export class MinionsError extends Error {
  override readonly name = "MinionsError";

  constructor(
    /** The status of HTTP. */
    readonly status: number,
    /** What the command line prints as well, such as `recipe-not-found`. */
    readonly code: string,
    message: string,
    /** All that the server says; undefined: the answer is that of something before it. */
    readonly problem?: Problem,
    /** After how many seconds it may be tried again; undefined: the server does not say. */
    readonly retryAfterSeconds?: number,
  ) {
    super(message);
  }
}

const ENDS: ReadonlySet<RunEvent["type"]> = new Set([
  "run_completed",
  "run_failed",
  "run_waiting",
] as const);
const MOST_ATTEMPTS = 8;
const LONGEST_WAIT_MS = 10_000;
const BUSY: ReadonlySet<number> = new Set([429, 502, 503, 504]);

/** A client of one server. It keeps nothing but its options. */
export class MinionsClient extends Operations {
  readonly #root: string;
  readonly #token: ClientOptions["token"];
  readonly #fetch: typeof globalThis.fetch;
  readonly #sleep: (milliseconds: number) => Promise<void>;

  constructor(options: ClientOptions) {
    super();
    const url = URL.canParse(options.url) ? new URL(options.url) : undefined;
    if (!url?.protocol.startsWith("http") || url.search || url.hash) {
      throw new TypeError(
        `The url of the server is ${JSON.stringify(options.url)}; expected is an address such as ` +
          `"http://127.0.0.1:8642", without "?" and "#".`,
      );
    }
    this.#root = url.href.replace(/\/+$/, "");
    this.#token = options.token;
    this.#fetch = options.fetch ?? ((...request) => globalThis.fetch(...request));
    this.#sleep = options.sleep ?? ((wait) => new Promise((done) => setTimeout(done, wait)));
  }

  /**
   * Run a recipe until it ends or waits for somebody, and return the run.
   *
   * A run that failed is returned, too: look at its `status`, `output` and `error`. The request is
   * sent again where its answer was lost: the key makes it the same run.
   *
   * @throws MinionsError if the server refuses a request.
   */
  async run(request: RunRequest, options: RunOptions = {}): Promise<RunView> {
    const idempotencyKey = options.idempotencyKey ?? crypto.randomUUID();
    const { signal } = options;
    const accepted = await this.#persist(signal, () =>
      this.startRun(request, { idempotencyKey, signal }),
    );
    return this.finish(accepted.run_id, options);
  }

  /**
   * Follow a run until it ends or waits for somebody, and return it.
   *
   * What it waits for is given to `decide`, one decision after another. Whoever else was first has
   * decided.
   */
  async finish(runId: string, options: FinishOptions = {}): Promise<RunView> {
    const { signal } = options;
    let after = options.after ?? 0;
    for (;;) {
      for await (const event of this.follow(runId, { after, signal })) {
        after = Math.max(after, event.position ?? 0);
        options.onEvent?.(event);
      }
      const run = await this.#persist(signal, () => this.getRun(runId, { signal }));
      const goesOn =
        run.status === "needs_decision"
          ? await this.#decideOne(run, options)
          : run.status === "running" || run.status === "queued";
      if (!goesOn) {
        return run;
      }
    }
  }

  /**
   * The events of a run, first those that are stored, then live ones, until it ends or waits.
   *
   * A stream that is cut is opened again after its last event, so that no stored event is given
   * twice or left out; pieces of answers (`step_delta`) may be.
   */
  async *follow(
    runId: string,
    options: FollowOptions = {},
  ): AsyncGenerator<RunEvent, void, undefined> {
    const { signal } = options;
    let after = options.after ?? 0;
    for (let failures = 0; ; failures += 1) {
      let last: RunEvent | undefined;
      try {
        const path = `/api/v1/runs/${encodeURIComponent(runId)}/events`;
        const response = await this.#open({ method: "GET", path, query: { after }, signal });
        if (response.status === 204) {
          return;
        }
        for await (const event of eventsOf(response)) {
          if (event.position !== undefined) {
            after = Math.max(after, event.position);
            failures = 0;
          }
          last = event;
          yield event;
        }
      } catch (error) {
        if (!isPassing(error) || signal?.aborted || failures + 1 >= MOST_ATTEMPTS) {
          throw error;
        }
        await this.#sleep(waitBefore(failures + 1, error));
        continue;
      }
      if (last !== undefined && ENDS.has(last.type)) {
        return;
      }
      if (failures + 1 >= MOST_ATTEMPTS) {
        throw new MinionsError(
          200,
          "stream-cut",
          `The events of run ${runId} ended ${MOST_ATTEMPTS} times without the end of the run.`,
        );
      }
      await this.#sleep(waitBefore(failures + 1));
    }
  }

  protected async send<T>(call: Call): Promise<T> {
    const response = await this.#open(call);
    if (response.status === 204) {
      return undefined as T;
    }
    const isJson = /^application\/json\b/.test(response.headers.get("content-type") ?? "");
    return (isJson ? await response.json() : await response.text()) as T;
  }

  protected async *stream(call: Call): AsyncGenerator<RunEvent, void, undefined> {
    const response = await this.#open(call);
    if (response.status !== 204) {
      yield* eventsOf(response);
    }
  }

  /** Whether a decision was made. */
  async #decideOne(run: RunView, options: FinishOptions): Promise<boolean> {
    for (const waiting of run.waiting) {
      const decision = await options.decide?.(waiting);
      if (decision !== undefined) {
        try {
          await this.decide(waiting.id, decision, { signal: options.signal });
        } catch (error) {
          if (!(error instanceof MinionsError && error.code === "already-decided")) {
            throw error;
          }
        }
        return true;
      }
    }
    return false;
  }

  /** Repeat what may be sent twice while the server is away or busy. */
  async #persist<T>(signal: AbortSignal | undefined, attempt: () => Promise<T>): Promise<T> {
    for (let failures = 1; ; failures += 1) {
      try {
        return await attempt();
      } catch (error) {
        if (!isPassing(error) || signal?.aborted || failures >= MOST_ATTEMPTS) {
          throw error;
        }
        await this.#sleep(waitBefore(failures, error));
      }
    }
  }

  /** The answer to a call, if the server grants it. */
  async #open(call: Call): Promise<Response> {
    const url = new URL(this.#root + call.path);
    for (const [name, value] of Object.entries(call.query ?? {})) {
      if (value !== undefined) {
        url.searchParams.set(name, String(value));
      }
    }
    const token = typeof this.#token === "function" ? await this.#token() : this.#token;
    const headers = new Headers({ authorization: `Bearer ${token}` });
    for (const [name, value] of Object.entries(call.headers ?? {})) {
      if (value !== undefined) {
        headers.set(name, value);
      }
    }
    const init: RequestInit = { method: call.method, headers, signal: call.signal ?? null };
    if (call.body !== undefined) {
      headers.set("content-type", "application/json");
      init.body = JSON.stringify(call.body);
    }
    const response = await this.#fetch(url, init);
    if (!response.ok) {
      throw await refusalOf(response);
    }
    return response;
  }
}

async function refusalOf(response: Response): Promise<MinionsError> {
  const { status } = response;
  const text = await response.text();
  const said = Number(response.headers.get("retry-after") ?? Number.NaN);
  const wait = Number.isFinite(said) ? said : undefined;
  if (!response.headers.get("content-type")?.startsWith("application/problem+json")) {
    const words = text.trim().slice(0, 200) || response.statusText;
    const message = `${response.url} answered ${status}, not as a server of Minions does: ${words}`;
    return new MinionsError(status, "foreign-answer", message, undefined, wait);
  }
  const problem = JSON.parse(text) as Problem;
  const message = `${problem.code}: ${problem.detail}`;
  return new MinionsError(status, problem.code, message, problem, wait);
}

/** Whether the same request may succeed later: the connection failed, or the server is busy. */
function isPassing(error: unknown): boolean {
  return error instanceof MinionsError ? BUSY.has(error.status) : error instanceof TypeError;
}

function waitBefore(attempt: number, error?: unknown): number {
  const said = error instanceof MinionsError ? error.retryAfterSeconds : undefined;
  return said === undefined ? Math.min(250 * 2 ** attempt, LONGEST_WAIT_MS) : said * 1_000;
}

/**
 * The events of a stream as they come.
 *
 * @throws MinionsError (`unreadable-event`) if the data of one is no event.
 */
async function* eventsOf(response: Response): AsyncGenerator<RunEvent, void, undefined> {
  if (response.body === null) {
    return;
  }
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let data: string[] = [];
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) {
        return; // what is not ended by an empty line was cut off
      }
      rest += decoder.decode(value, { stream: true });
      // A CR at the end may be the first half of CR LF.
      const isHalf = rest.endsWith("\r");
      const lines = (isHalf ? rest.slice(0, -1) : rest).split(/\r\n|\r|\n/);
      rest = (lines.pop() ?? "") + (isHalf ? "\r" : "");
      for (const line of lines) {
        if (line.startsWith("data:")) {
          data.push(line.slice(line.startsWith("data: ") ? 6 : 5));
        } else if (line === "" && data.length > 0) {
          yield eventIn(data.join("\n"), response);
          data = [];
        }
      }
    }
  } finally {
    await reader.cancel().catch(() => undefined); // a reader that leaves early lets go
  }
}

function eventIn(data: string, response: Response): RunEvent {
  try {
    const event: unknown = JSON.parse(data);
    if (typeof event === "object" && event !== null && "type" in event) {
      return event as RunEvent;
    }
  } catch {
    // told below
  }
  const words = `${response.url} sent an event that is no object with a type: ${data.slice(0, 200)}`;
  throw new MinionsError(response.status, "unreadable-event", words);
}
