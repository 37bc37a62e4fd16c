import com.hivemq.client.mqtt.MqttClient;
import com.hivemq.client.mqtt.MqttGlobalPublishFilter;
import com.hivemq.client.mqtt.MqttVersion;
import com.hivemq.client.mqtt.datatypes.MqttQos;
import com.hivemq.client.mqtt.exceptions.ConnectionClosedException;
import com.hivemq.client.mqtt.exceptions.ConnectionFailedException;
import com.hivemq.client.mqtt.mqtt3.Mqtt3AsyncClient;
import com.hivemq.client.mqtt.mqtt5.Mqtt5AsyncClient;
import com.hivemq.client.mqtt.mqtt5.message.publish.Mqtt5Publish;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;

/** A client with a session that is kept. It connects again by itself, and acknowledges when it is told to. */
final class Reader {
    private static final int PATIENCE_S = 60;
    private static final long EXPIRY_S = 3_600;

    /** A message, and how to acknowledge it. */
    record Came(String payload, Runnable acknowledge) {}

    final List<Came> came = new CopyOnWriteArrayList<>();
    final AtomicInteger connections = new AtomicInteger();
    final List<String> ends = new CopyOnWriteArrayList<>();
    private final Mqtt5AsyncClient five;
    private final Mqtt3AsyncClient three;

    Reader(MqttVersion version, String name, int port) {
        var builder = MqttClient.builder()
                .identifier(name)
                .serverHost("127.0.0.1")
                .serverPort(port)
                .automaticReconnect()
                .initialDelay(100, TimeUnit.MILLISECONDS)
                .maxDelay(500, TimeUnit.MILLISECONDS)
                .applyAutomaticReconnect()
                .addConnectedListener(context -> connections.incrementAndGet())
                .addDisconnectedListener(context -> {
                    // Attempts while the broker is away are none, nor are those that reach one which is stopping.
                    Throwable cause = context.getCause();
                    boolean isNobodyThere = cause instanceof ConnectionFailedException
                            || cause instanceof ConnectionClosedException;
                    if (context.getClientConfig().getState().isConnected() || !isNobodyThere) {
                        ends.add(context.getSource() + " " + cause);
                    }
                });
        five = version == MqttVersion.MQTT_5_0 ? builder.useMqttVersion5().buildAsync() : null;
        three = version == MqttVersion.MQTT_5_0 ? null : builder.useMqttVersion3().buildAsync();
    }

    void begin(String topic, MqttQos qos) throws Exception {
        if (five != null) {
            five.publishes(MqttGlobalPublishFilter.ALL, this::take, true);
            five.connectWith().cleanStart(false).sessionExpiryInterval(EXPIRY_S).send()
                    .get(PATIENCE_S, TimeUnit.SECONDS);
            five.subscribeWith().topicFilter(topic).qos(qos).send().get(PATIENCE_S, TimeUnit.SECONDS);
        } else {
            three.publishes(MqttGlobalPublishFilter.ALL, publish -> came.add(new Came(
                    text(publish.getPayloadAsBytes()), publish::acknowledge)), true);
            three.connectWith().cleanSession(false).send().get(PATIENCE_S, TimeUnit.SECONDS);
            three.subscribeWith().topicFilter(topic).qos(qos).send().get(PATIENCE_S, TimeUnit.SECONDS);
        }
    }

    private void take(Mqtt5Publish publish) {
        came.add(new Came(text(publish.getPayloadAsBytes()), publish::acknowledge));
    }

    private static String text(byte[] payload) {
        return new String(payload, StandardCharsets.UTF_8);
    }

    List<String> payloads() {
        List<String> payloads = new ArrayList<>();
        came.forEach(one -> payloads.add(one.payload()));
        return payloads;
    }

    /** Ends in order, when the broker has all that was acknowledged. */
    void end() throws Exception {
        // Its answer comes behind what the client has sent before. That a connection ends says less: the client waits ten
        // seconds for the broker, and not longer.
        var behind = five != null
                ? five.unsubscribeWith().topicFilter("behind").send()
                : three.unsubscribeWith().topicFilter("behind").send();
        behind.get(PATIENCE_S, TimeUnit.SECONDS);
        var ended = five != null ? five.disconnect() : three.disconnect();
        ended.get(PATIENCE_S, TimeUnit.SECONDS);
    }
}
