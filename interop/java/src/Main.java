import jakarta.jms.Connection;
import jakarta.jms.JMSException;
import jakarta.jms.JMSSecurityException;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.URI;
import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.qpid.jms.JmsConnectionFactory;

/** Runs the suite over TCP and TLS, and the ways to say who one is. Prints `ok NAME` and `not ok NAME: why`. */
final class Main {
    private static final String USER = "interop";
    private static final String PASSWORD = "a password of Bob's";

    /** Steps that run side by side; most of them wait for a clock. */
    private static final int AT_ONCE = 10;
    private static final String STORE_PASSWORD = "public";

    private Main() {}

    public static void main(String[] arguments)
            throws IOException, GeneralSecurityException, InterruptedException {
        Report report = new Report(arguments.length > 0 ? arguments[0] : "");
        String ready = Files.readString(Path.of(System.getenv("STERNA_READY_FILE")));
        String trust = store(Path.of(System.getenv("STERNA_CA")), Path.of(System.getenv("STERNA_BUILD")));
        List<URI> places = new ArrayList<>();
        Matcher found = Pattern.compile("\"url\"\\s*:\\s*\"(amqps?://[^\"]+)\"").matcher(ready);
        while (found.find()) {
            places.add(URI.create(found.group(1)));
        }
        String run = Long.toHexString(System.nanoTime() & 0xFFFFFF);
        ExecutorService workers = Executors.newFixedThreadPool(AT_ONCE);
        // The first listener of each kind admits everybody, the second asks who it is.
        for (String scheme : List.of("amqp", "amqps")) {
            List<URI> of = places.stream().filter(each -> each.getScheme().equals(scheme)).toList();
            if (of.size() < 2) {
                report.notOk("jms/" + scheme, "the broker has not two such listeners");
                continue;
            }
            String transport = scheme.equals("amqp") ? "tcp" : "tls";
            new JmsSuite(new Place(transport, url(of.get(0), trust, "ANONYMOUS")), run, report, workers).run();
            for (String mechanism : List.of("PLAIN", "SCRAM-SHA-256")) {
                String name = "jms/" + transport + "/sasl-" + mechanism.toLowerCase(java.util.Locale.ROOT);
                String url = url(of.get(1), trust, mechanism);
                workers.execute(() -> admitted(report, name, url, PASSWORD, true));
                workers.execute(() -> admitted(report, name + "-wrong", url, "wrong", false));
            }
        }
        workers.shutdown();
        if (!workers.awaitTermination(4, TimeUnit.MINUTES)) {
            report.notOk("jms", "not done within four minutes");
        }
        report.exit();
    }

    private static void admitted(Report report, String name, String url, String password, boolean wanted) {
        if (!report.wanted(name)) {
            return;
        }
        try (Connection connection = new JmsConnectionFactory(USER, password, url).createConnection()) {
            connection.start();
            connection.createSession().createProducer(null).close();
            if (wanted) {
                report.ok(name);
            } else {
                report.notOk(name, "was admitted");
            }
        } catch (JMSSecurityException why) {
            if (wanted) {
                report.notOk(name, why.toString());
            } else {
                report.ok(name);
            }
        } catch (JMSException why) {
            report.notOk(name, why.toString());
        }
    }

    /** The certificate to trust in the form that the library reads. */
    private static String store(Path certificate, Path folder) throws IOException, GeneralSecurityException {
        KeyStore made = KeyStore.getInstance("PKCS12");
        made.load(null, null);
        try (InputStream text = Files.newInputStream(certificate)) {
            made.setCertificateEntry("broker", CertificateFactory.getInstance("X.509").generateCertificate(text));
        }
        Path path = folder.resolve("trusted.p12");
        try (OutputStream out = Files.newOutputStream(path)) {
            made.store(out, STORE_PASSWORD.toCharArray());
        }
        return path.toString();
    }

    private static String url(URI place, String trust, String mechanism) {
        String options = "?amqp.saslMechanisms=" + mechanism + "&jms.requestTimeout=60000&jms.connectTimeout=60000";
        if (place.getScheme().equals("amqps")) {
            options += "&transport.trustStoreType=PKCS12&transport.verifyHost=true&transport.trustStorePassword="
                    + STORE_PASSWORD + "&transport.trustStoreLocation="
                    + URLEncoder.encode(trust, StandardCharsets.UTF_8);
        }
        return place + options;
    }
}
