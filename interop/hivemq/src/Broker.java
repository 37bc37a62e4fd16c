import java.io.IOException;
import java.net.ServerSocket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.TimeUnit;

/** A broker of its own, that a step ends and starts again on the same port and directory. */
final class Broker implements AutoCloseable {
    private static final int PATIENCE_S = 60;

    final int port;
    private final Path folder;
    private Process process;

    Broker(Path folder) throws IOException, InterruptedException {
        this.folder = folder;
        Files.createDirectories(folder);
        try (ServerSocket free = new ServerSocket(0)) {
            port = free.getLocalPort();
        }
        Files.writeString(folder.resolve("broker.toml"), String.join("\n",
                "shards = 2",
                "data_directory = \"" + folder.resolve("data") + "\"",
                "[[listener]]",
                "url = \"mqtt://127.0.0.1:" + port + "\"",
                "[store]",
                // No step ends the broker after it has written how far a reader has come.
                "cursor_interval_ms = 3600000",
                ""));
        start();
    }

    void start() throws IOException, InterruptedException {
        Path ready = folder.resolve("ready.json");
        Files.deleteIfExists(ready);
        process = new ProcessBuilder(System.getenv("STERNA_BIN"), "serve",
                "--config", folder.resolve("broker.toml").toString(), "--ready-file", ready.toString())
                .redirectErrorStream(true)
                .redirectOutput(ProcessBuilder.Redirect.appendTo(folder.resolve("log").toFile()))
                .start();
        Steps.await("the broker is ready", () -> Files.exists(ready) || !process.isAlive());
        if (!process.isAlive()) {
            throw new IOException("the broker ended with " + process.exitValue());
        }
    }

    /** Ends it by SIGTERM or SIGKILL. */
    void end(boolean isKilled) throws IOException, InterruptedException {
        if (isKilled) {
            process.destroyForcibly();
        } else {
            process.destroy();
        }
        if (!process.waitFor(PATIENCE_S, TimeUnit.SECONDS)) {
            throw new IOException("the broker does not end");
        }
    }

    @Override
    public void close() {
        process.destroyForcibly();
    }
}
