import java.util.concurrent.Callable;

/** Waiting, for all steps. */
final class Steps {
    private static final long PATIENCE_MS = 60_000;
    private static final long PAUSE_MS = 10;

    private Steps() {}

    /** Waits until something holds. */
    static void await(String what, Callable<Boolean> holds) throws InterruptedException {
        long until = System.nanoTime() + PATIENCE_MS * 1_000_000;
        try {
            while (!holds.call()) {
                if (System.nanoTime() > until) {
                    throw new IllegalStateException("not within a minute: " + what);
                }
                Thread.sleep(PAUSE_MS);
            }
        } catch (InterruptedException | RuntimeException why) {
            throw why;
        } catch (Exception why) {
            throw new IllegalStateException(what, why);
        }
    }
}
