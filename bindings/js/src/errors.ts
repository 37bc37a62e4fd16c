/** Errors of requests: refusals, and answers that never come. */

/** The answer of the broker to a request that it refuses (RFC 9457). */
export interface Problem {
  /** `urn:sterna:problem:` and a word. */
  type?: string;
  title?: string;
  status?: number;
  detail?: string;
}

/** There was no answer, or it broke off. The client tries again by itself. */
export class ConnectionError extends Error {
  override name = "ConnectionError";
}

/** Whether the broker's certificate is not trusted, which waiting does not change. Browsers do not say. */
export function isUntrusted(error: unknown): boolean {
  return error instanceof ConnectionError && /CERT|SIGNATURE/.test((error.cause as { code?: string } | undefined)?.code ?? "");
}

/** The broker has refused a request. */
export class RequestError extends Error {
  override name = "RequestError";

  constructor(
    /** The status of the answer; 0 where there was none. */
    readonly status: number,
    /** The words of the broker; `null` where something else has answered, or nobody. */
    readonly problem: Problem | null,
    /** Time that the broker asks to wait before the next try. */
    readonly retryAfterMs: number = 0,
    message: string = problem?.detail ?? problem?.title ?? `status ${status}`,
    options?: ErrorOptions,
  ) {
    super(message, options);
  }

  /** The last word of the problem's type, such as `queue-full`; empty where there is none. */
  get kind(): string {
    return this.problem?.type?.split(":").at(-1) ?? "";
  }

  static async of(response: Response): Promise<RequestError> {
    let problem: Problem | null = null;
    try {
      const said: unknown = await response.json();
      problem = typeof said === "object" && said !== null ? said : null;
    } catch {
      // A proxy has answered with something else, or the answer broke off. The status says enough.
    }
    const seconds = Number(response.headers.get("Retry-After"));
    return new RequestError(response.status, problem, seconds > 0 ? seconds * 1000 : 0);
  }
}

/** A message was not published; with status 0 it is not known whether it was. */
export class PublishError extends RequestError {
  override name = "PublishError";

  static from(error: RequestError): PublishError {
    return new PublishError(error.status, error.problem, error.retryAfterMs, error.message, { cause: error });
  }

  static unknown(why: string, cause?: unknown): PublishError {
    return new PublishError(0, null, 0, `it is not known whether the message was published: ${why}`, { cause });
  }
}
