import com.hivemq.client.mqtt.MqttClient;
import com.hivemq.client.mqtt.MqttVersion;
import com.hivemq.client.mqtt.datatypes.MqttQos;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Locale;

/**
 * Restarts of the broker under a client that knows what it has: a message that it has and did not acknowledge has to come
 * with DUP and its Packet Identifier, and no other message with that. Else it ends the connection with 0x82 (no DUP, or
 * another QoS), or takes the other message for the one that it has. [MQTT-3.3.1-1] [MQTT-4.4.0-1]
 */
final class Main {
    private static final int MESSAGES = 20;

    /** The levels at which messages are published. */
    private enum Levels {
        ONE, TWO, BOTH;

        MqttQos of(int number) {
            return this == ONE || this == BOTH && number % 3 == 0 ? MqttQos.AT_LEAST_ONCE : MqttQos.EXACTLY_ONCE;
        }
    }

    private Main() {}

    public static void main(String[] arguments) {
        Report report = new Report(arguments.length > 0 ? arguments[0] : "");
        Path build = Path.of(System.getenv("STERNA_BUILD"));
        String run = Long.toHexString(System.nanoTime() & 0xFFFFFF);
        for (MqttVersion version : MqttVersion.values()) {
            for (Levels levels : Levels.values()) {
                for (boolean isKilled : List.of(false, true)) {
                    String name = "hivemq/" + (version == MqttVersion.MQTT_5_0 ? "5.0" : "3.1.1") + "/qos-"
                            + levels.name().toLowerCase(Locale.ROOT) + (isKilled ? "/killed" : "/stopped");
                    if (!report.wanted(name)) {
                        continue;
                    }
                    Path folder = build.resolve("hivemq-" + run).resolve(name.replace('/', '-'));
                    try (Broker broker = new Broker(folder)) {
                        restart(broker, version, levels, isKilled);
                        report.ok(name);
                    } catch (Exception why) {
                        report.notOk(name, why.toString());
                    }
                }
            }
        }
        report.exit();
    }

    /** The reader acknowledges each second message, and those that it has kept after a restart of the broker. */
    private static void restart(Broker broker, MqttVersion version, Levels levels, boolean isKilled) throws Exception {
        Reader reader = new Reader(version, "reader", broker.port);
        reader.begin("again/#", MqttQos.EXACTLY_ONCE);
        publish(broker.port, levels, 0, MESSAGES);
        Steps.await("all have come", () -> reader.came.size() == MESSAGES);
        List<Reader.Came> held = new ArrayList<>();
        for (int at = 0; at < MESSAGES; at++) {
            Reader.Came one = reader.came.get(at);
            if (at % 2 == 0) {
                held.add(one);
            } else {
                one.acknowledge().run();
            }
        }
        broker.end(isKilled);
        broker.start();
        Steps.await("the reader is back", () -> reader.connections.get() == 2 || reader.ends.size() > 1);
        publish(broker.port, levels, MESSAGES, 2 * MESSAGES);
        held.forEach(one -> one.acknowledge().run());
        // What has come twice, and the new ones.
        var acknowledged = new HashSet<Reader.Came>(reader.came.subList(0, MESSAGES));
        String last = Integer.toString(2 * MESSAGES - 1);
        Steps.await("the new ones have come and are acknowledged", () -> {
            boolean isLast = false;
            for (Reader.Came one : reader.came) {
                if (acknowledged.add(one)) {
                    one.acknowledge().run();
                }
                // One that comes behind this loop is not acknowledged: the next turn sees it.
                isLast |= one.payload().equals(last);
            }
            return reader.ends.size() > 1 || isLast;
        });
        if (reader.ends.size() != 1 || reader.connections.get() != 2) {
            throw new IllegalStateException(reader.connections + " connections, ended by " + reader.ends);
        }
        List<String> payloads = reader.payloads();
        for (int number = 0; number < 2 * MESSAGES; number++) {
            String text = Integer.toString(number);
            long times = payloads.stream().filter(text::equals).count();
            // The client sends PUBACK in order, so none behind the first that is held.
            boolean mayComeTwice = levels.of(number) == MqttQos.AT_LEAST_ONCE && number < MESSAGES;
            if (times != 1 && !(times == 2 && mayComeTwice)) {
                throw new IllegalStateException("message " + text + " came " + times + " times: " + payloads);
            }
        }
        reader.end();
        // The broker knows that all are acknowledged.
        broker.end(false);
        broker.start();
        Reader again = new Reader(version, "reader", broker.port);
        again.begin("again/#", MqttQos.EXACTLY_ONCE);
        publish(broker.port, levels, 2 * MESSAGES, 2 * MESSAGES + 1);
        Steps.await("the last has come", () -> again.payloads().contains(Integer.toString(2 * MESSAGES)));
        if (again.came.size() != 1) {
            throw new IllegalStateException("acknowledged, and here again: " + again.payloads());
        }
        again.end();
    }

    /** Publishes numbers, each of which is acknowledged. */
    private static void publish(int port, Levels levels, int from, int until) {
        var publisher = MqttClient.builder().useMqttVersion5()
                .identifier("publisher").serverHost("127.0.0.1").serverPort(port).buildBlocking();
        publisher.connect();
        for (int number = from; number < until; number++) {
            byte[] payload = Integer.toString(number).getBytes(StandardCharsets.UTF_8);
            publisher.publishWith().topic("again/a").qos(levels.of(number)).payload(payload).send();
        }
        publisher.disconnect();
    }
}
