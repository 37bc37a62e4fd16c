import jakarta.jms.BytesMessage;
import jakarta.jms.Connection;
import jakarta.jms.Destination;
import jakarta.jms.InvalidDestinationException;
import jakarta.jms.JMSException;
import jakarta.jms.MapMessage;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.ObjectMessage;
import jakarta.jms.Queue;
import jakarta.jms.QueueBrowser;
import jakarta.jms.Session;
import jakarta.jms.StreamMessage;
import jakarta.jms.TemporaryQueue;
import jakarta.jms.TemporaryTopic;
import jakarta.jms.TextMessage;
import jakarta.jms.Topic;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Enumeration;
import java.util.List;
import java.util.concurrent.ExecutorService;
import org.apache.qpid.jms.JmsConnectionFactory;

/** Qpid JMS against the broker: what an application written for Jakarta Messaging does. */
final class JmsSuite {
    /** How long a message may take, in milliseconds. A hang is told from a slow machine, and nothing is measured. */
    static final int PATIENCE_MS = 60_000;

    /** Time for which one of several consumers is asked, in milliseconds. */
    static final int POLL_MS = 20;

    /** Delay of a message. */
    static final long DELAY_MS = 700;

    /** Time given to a message that must not come. */
    static final int QUIET_MS = 500;

    private final Place place;
    private final String run;
    private final Report report;
    private final ExecutorService workers;
    private int number;

    JmsSuite(Place place, String run, Report report, ExecutorService workers) {
        this.place = place;
        this.run = run;
        this.report = report;
        this.workers = workers;
    }

    /** One step: a connection of its own, and names that no other step uses. */
    final class Step implements AutoCloseable {
        private final List<Connection> connections = new ArrayList<>();
        final String name;

        Step(int number) {
            name = "jms-" + run + "-" + place.transport() + "-" + number;
        }

        Connection connect(String... identifier) throws JMSException {
            JmsConnectionFactory factory = new JmsConnectionFactory(place.url());
            Connection connection = factory.createConnection();
            if (identifier.length > 0) {
                connection.setClientID(identifier[0]);
            }
            connections.add(connection);
            connection.start();
            return connection;
        }

        Session session(int mode) throws JMSException {
            return connect().createSession(mode);
        }

        Session session() throws JMSException {
            return session(Session.AUTO_ACKNOWLEDGE);
        }

        @Override
        public void close() throws JMSException {
            for (Connection connection : connections) {
                connection.close();
            }
        }
    }

    /** What a step does. */
    interface Work {
        void run(Step step) throws Exception;
    }

    private void step(String name, Work work) {
        String label = "jms/" + place.transport() + "/" + name;
        if (!report.wanted(label)) {
            return;
        }
        int own = ++number;
        workers.execute(() -> {
            try (Step step = new Step(own)) {
                work.run(step);
                report.ok(label);
            } catch (Exception | AssertionError why) {
                report.notOk(label, why.toString());
            }
        });
    }

    private static void equal(Object got, Object wanted, String what) {
        if (!wanted.equals(got)) {
            throw new AssertionError(what + ": got " + got + ", expected " + wanted);
        }
    }

    private static <T extends Message> T next(MessageConsumer consumer, Class<T> kind) throws JMSException {
        Message message = consumer.receive(PATIENCE_MS);
        if (message == null) {
            throw new AssertionError("no message within " + PATIENCE_MS + " ms");
        }
        if (!kind.isInstance(message)) {
            throw new AssertionError("a " + message.getClass().getSimpleName() + ", not a " + kind.getSimpleName());
        }
        return kind.cast(message);
    }

    private static String text(MessageConsumer consumer) throws JMSException {
        return next(consumer, TextMessage.class).getText();
    }

    private static void quiet(MessageConsumer consumer, String why) throws JMSException {
        Message message = consumer.receive(QUIET_MS);
        if (message != null) {
            throw new AssertionError(why + ": " + message);
        }
    }

    /** Has the workers do every step. */
    void run() {
        step("message-types", JmsSuite::messageTypes);
        step("properties", JmsSuite::properties);
        step("queue-competing", JmsSuite::competing);
        step("topic-copies", JmsSuite::copies);
        step("durable-subscriber", JmsSuite::durable);
        step("shared-subscriber", JmsSuite::shared);
        step("shared-durable-subscriber", JmsSuite::sharedDurable);
        step("selector", JmsSuite::selector);
        step("no-local", JmsSuite::noLocal);
        step("transacted-commit", JmsSuite::commit);
        step("transacted-rollback", JmsSuite::rollback);
        step("transacted-receive", JmsSuite::transactedReceive);
        step("client-acknowledge-recover", JmsSuite::recover);
        step("request-response", JmsSuite::requestResponse);
        step("temporary-queue-lifetime", JmsSuite::temporaryQueue);
        step("temporary-topic-lifetime", JmsSuite::temporaryTopic);
        step("temporary-queues-beyond-the-limit", JmsSuite::manyTemporaryQueues);
        step("anonymous-producer", JmsSuite::anonymousProducer);
        step("time-to-live", JmsSuite::timeToLive);
        step("asynchronous-send", JmsSuite::asynchronous);
        step("large-8-mib", step -> large(step, 8 << 20));
        step("unauthorized", JmsSuite::unauthorized);
        step("browser", JmsSuite::browser);
        step("delivery-delay", JmsSuite::deliveryDelay);
        step("delivery-delay-of-topics", JmsSuite::topicDelay);
        step("priorities", step -> priorities(step, place.transport()));
        step("dead-letters", step -> deadLetters(step, place.transport()));
    }

    private static void messageTypes(Step step) throws Exception {
        Session session = step.session();
        Queue queue = session.createQueue("queue/" + step.name);
        MessageProducer producer = session.createProducer(queue);
        MessageConsumer consumer = session.createConsumer(queue);

        producer.send(session.createTextMessage("Küstenseeschwalbe €"));
        equal(text(consumer), "Küstenseeschwalbe €", "text");

        BytesMessage bytes = session.createBytesMessage();
        bytes.writeBytes(new byte[] {0, 1, -1});
        producer.send(bytes);
        BytesMessage gotBytes = next(consumer, BytesMessage.class);
        byte[] raw = new byte[(int) gotBytes.getBodyLength()];
        gotBytes.readBytes(raw);
        equal(Arrays.toString(raw), "[0, 1, -1]", "bytes");

        MapMessage map = session.createMapMessage();
        map.setInt("int", -7);
        map.setLong("long", Long.MIN_VALUE);
        map.setBoolean("boolean", true);
        map.setDouble("double", 0.1);
        map.setString("string", "s");
        map.setBytes("bytes", new byte[] {9});
        map.setChar("char", 'ß');
        map.setShort("short", (short) -300);
        map.setByte("byte", (byte) -3);
        map.setFloat("float", 1.5f);
        producer.send(map);
        MapMessage gotMap = next(consumer, MapMessage.class);
        equal(gotMap.getInt("int"), -7, "int");
        equal(gotMap.getLong("long"), Long.MIN_VALUE, "long");
        equal(gotMap.getBoolean("boolean"), true, "boolean");
        equal(gotMap.getDouble("double"), 0.1, "double");
        equal(gotMap.getString("string"), "s", "string");
        equal(Arrays.toString(gotMap.getBytes("bytes")), "[9]", "bytes in a map");
        equal(gotMap.getChar("char"), 'ß', "char");
        equal(gotMap.getShort("short"), (short) -300, "short");
        equal(gotMap.getByte("byte"), (byte) -3, "byte");
        equal(gotMap.getFloat("float"), 1.5f, "float");

        StreamMessage stream = session.createStreamMessage();
        stream.writeInt(5);
        stream.writeString("five");
        producer.send(stream);
        StreamMessage gotStream = next(consumer, StreamMessage.class);
        equal(gotStream.readInt(), 5, "int of a stream");
        equal(gotStream.readString(), "five", "string of a stream");

        ObjectMessage object = session.createObjectMessage(new ArrayList<>(List.of("a", "b")));
        producer.send(object);
        equal(next(consumer, ObjectMessage.class).getObject(), List.of("a", "b"), "object");

        producer.send(session.createMessage());
        next(consumer, Message.class);
    }

    private static void properties(Step step) throws Exception {
        Session session = step.session();
        Topic topic = session.createTopic("iop/" + step.name);
        MessageConsumer consumer = session.createConsumer(topic);
        MessageProducer producer = session.createProducer(topic);
        producer.setPriority(8);
        Message message = session.createTextMessage("x");
        message.setJMSCorrelationID("c-1");
        message.setJMSType("kind");
        message.setJMSReplyTo(session.createQueue("queue/" + step.name));
        message.setStringProperty("JMSXGroupID", "g");
        message.setIntProperty("JMSXGroupSeq", 3);
        message.setBooleanProperty("flag", true);
        message.setByteProperty("b", (byte) -1);
        message.setShortProperty("s", (short) -2);
        message.setIntProperty("i", -3);
        message.setLongProperty("l", -4);
        message.setFloatProperty("f", 0.5f);
        message.setDoubleProperty("d", 0.25);
        message.setStringProperty("t", "text");
        producer.send(message);
        Message got = next(consumer, Message.class);
        equal(got.getJMSMessageID(), message.getJMSMessageID(), "message id");
        equal(got.getJMSTimestamp(), message.getJMSTimestamp(), "timestamp");
        equal(got.getJMSCorrelationID(), "c-1", "correlation id");
        equal(got.getJMSType(), "kind", "type");
        equal(got.getJMSPriority(), 8, "priority");
        equal(got.getJMSReplyTo(), message.getJMSReplyTo(), "reply to");
        equal(got.getJMSDestination(), topic, "destination");
        equal(got.getStringProperty("JMSXGroupID"), "g", "group");
        equal(got.getIntProperty("JMSXGroupSeq"), 3, "group sequence");
        equal(got.getBooleanProperty("flag"), true, "boolean");
        equal(got.getByteProperty("b"), (byte) -1, "byte");
        equal(got.getShortProperty("s"), (short) -2, "short");
        equal(got.getIntProperty("i"), -3, "int");
        equal(got.getLongProperty("l"), -4L, "long");
        equal(got.getFloatProperty("f"), 0.5f, "float");
        equal(got.getDoubleProperty("d"), 0.25, "double");
        equal(got.getStringProperty("t"), "text", "string");
    }

    private static void competing(Step step) throws Exception {
        Session session = step.session();
        Queue queue = session.createQueue(step.name);
        MessageProducer producer = session.createProducer(queue);
        for (int each = 0; each < 40; each++) {
            producer.send(session.createTextMessage(Integer.toString(each)));
        }
        // Prefetch decides who gets what; together they get each once.
        MessageConsumer first = session.createConsumer(queue);
        MessageConsumer second = step.session().createConsumer(queue);
        List<String> got = gathered(40, first, second);
        equal(got.stream().distinct().count(), 40L, "different messages");
    }

    /** So many messages, which some consumers get together. */
    private static List<String> gathered(int count, MessageConsumer... consumers) throws Exception {
        List<String> got = new ArrayList<>();
        long until = System.nanoTime() + PATIENCE_MS * 1_000_000L;
        while (got.size() < count) {
            for (MessageConsumer consumer : consumers) {
                Message message = consumer.receive(POLL_MS);
                if (message != null) {
                    got.add(((TextMessage) message).getText());
                }
            }
            if (System.nanoTime() > until) {
                throw new AssertionError("only " + got.size() + " of " + count + " messages");
            }
        }
        return got;
    }

    private static void copies(Step step) throws Exception {
        Session session = step.session();
        MessageConsumer exact = session.createConsumer(session.createTopic("iop/" + step.name + "/a"));
        MessageConsumer wild = session.createConsumer(session.createTopic("iop/" + step.name + "/+"));
        session.createProducer(session.createTopic("iop/" + step.name + "/a")).send(session.createTextMessage("x"));
        equal(text(exact), "x", "at the topic");
        equal(text(wild), "x", "at the filter");
    }

    private static void durable(Step step) throws Exception {
        Session sending = step.session();
        Topic topic = sending.createTopic("iop/" + step.name);
        MessageProducer producer = sending.createProducer(topic);
        Connection connection = step.connect(step.name);
        Session session = connection.createSession();
        session.createDurableSubscriber(topic, "sub");
        connection.close();
        producer.send(sending.createTextMessage("1"));
        producer.send(sending.createTextMessage("2"));
        Connection again = step.connect(step.name);
        Session resumed = again.createSession();
        MessageConsumer consumer = resumed.createDurableSubscriber(topic, "sub");
        equal(text(consumer), "1", "first");
        equal(text(consumer), "2", "second");
        consumer.close();
        resumed.unsubscribe("sub");
        producer.send(sending.createTextMessage("lost"));
        MessageConsumer anew = resumed.createDurableSubscriber(topic, "sub");
        quiet(anew, "a message after unsubscribe");
        anew.close();
        resumed.unsubscribe("sub");
    }

    private static void shared(Step step) throws Exception {
        Session session = step.connect(step.name).createSession();
        Topic topic = session.createTopic("iop/" + step.name);
        share(step, session, session.createSharedConsumer(topic, "both"), session.createSharedConsumer(topic, "both"));
    }

    private static void sharedDurable(Step step) throws Exception {
        Session session = step.connect(step.name).createSession();
        Topic topic = session.createTopic("iop/" + step.name);
        MessageConsumer first = session.createSharedDurableConsumer(topic, "kept");
        MessageConsumer second = session.createSharedDurableConsumer(topic, "kept");
        share(step, session, first, second);
        first.close();
        second.close();
        session.createProducer(topic).send(session.createTextMessage("meanwhile"));
        MessageConsumer third = session.createSharedDurableConsumer(topic, "kept");
        equal(text(third), "meanwhile", "what came between");
        third.close();
        session.unsubscribe("kept");
    }

    private static void share(Step step, Session session, MessageConsumer... consumers) throws Exception {
        MessageProducer producer = session.createProducer(session.createTopic("iop/" + step.name));
        for (int each = 0; each < 20; each++) {
            producer.send(session.createTextMessage(Integer.toString(each)));
        }
        List<String> got = gathered(20, consumers);
        equal(got.stream().distinct().count(), 20L, "different messages");
        for (MessageConsumer consumer : consumers) {
            quiet(consumer, "a message more");
        }
    }

    private static void selector(Step step) throws Exception {
        Session session = step.session();
        Queue queue = session.createQueue(step.name);
        MessageProducer producer = session.createProducer(queue);
        for (int each = 0; each < 6; each++) {
            Message message = session.createTextMessage(Integer.toString(each));
            message.setIntProperty("weight", each);
            message.setJMSType(each % 2 == 0 ? "even" : "odd");
            producer.send(message);
        }
        MessageConsumer chosen = session.createConsumer(queue, "weight BETWEEN 1 AND 4 AND JMSType = 'even'");
        equal(text(chosen), "2", "first");
        equal(text(chosen), "4", "second");
        quiet(chosen, "a message that was not selected");
    }

    private static void noLocal(Step step) throws Exception {
        Session session = step.session();
        Topic topic = session.createTopic("iop/" + step.name);
        MessageConsumer consumer = session.createConsumer(topic, null, true);
        session.createProducer(topic).send(session.createTextMessage("mine"));
        Session other = step.session();
        other.createProducer(topic).send(other.createTextMessage("theirs"));
        equal(text(consumer), "theirs", "from another connection");
    }

    private static void commit(Step step) throws Exception {
        Session session = step.session(Session.SESSION_TRANSACTED);
        Queue queue = session.createQueue(step.name);
        MessageProducer producer = session.createProducer(queue);
        MessageConsumer consumer = step.session().createConsumer(queue);
        producer.send(session.createTextMessage("1"));
        producer.send(session.createTextMessage("2"));
        quiet(consumer, "a message before commit");
        session.commit();
        equal(text(consumer), "1", "first");
        equal(text(consumer), "2", "second");
    }

    private static void rollback(Step step) throws Exception {
        Session session = step.session(Session.SESSION_TRANSACTED);
        Queue queue = session.createQueue(step.name);
        MessageProducer producer = session.createProducer(queue);
        MessageConsumer consumer = step.session().createConsumer(queue);
        producer.send(session.createTextMessage("never"));
        session.rollback();
        producer.send(session.createTextMessage("after"));
        session.commit();
        equal(text(consumer), "after", "after a rollback");
    }

    private static void transactedReceive(Step step) throws Exception {
        Session session = step.session(Session.SESSION_TRANSACTED);
        Queue queue = session.createQueue(step.name);
        Session sending = step.session();
        sending.createProducer(queue).send(sending.createTextMessage("work"));
        MessageConsumer consumer = session.createConsumer(queue);
        equal(text(consumer), "work", "at first");
        session.rollback();
        TextMessage again = next(consumer, TextMessage.class);
        equal(again.getText(), "work", "after a rollback");
        equal(again.getJMSRedelivered(), true, "redelivered");
        session.commit();
        quiet(consumer, "a message whose receipt was committed");
    }

    private static void recover(Step step) throws Exception {
        Session session = step.session(Session.CLIENT_ACKNOWLEDGE);
        Queue queue = session.createQueue(step.name);
        Session sending = step.session();
        sending.createProducer(queue).send(sending.createTextMessage("x"));
        MessageConsumer consumer = session.createConsumer(queue);
        equal(text(consumer), "x", "at first");
        session.recover();
        TextMessage again = next(consumer, TextMessage.class);
        equal(again.getIntProperty("JMSXDeliveryCount"), 2, "delivery count");
        again.acknowledge();
        quiet(consumer, "a message that was acknowledged");
    }

    private static void requestResponse(Step step) throws Exception {
        Session client = step.session();
        TemporaryQueue answers = client.createTemporaryQueue();
        MessageConsumer answered = client.createConsumer(answers);
        Session server = step.session();
        MessageConsumer requests = server.createConsumer(server.createQueue(step.name));
        TextMessage question = client.createTextMessage("what?");
        question.setJMSReplyTo(answers);
        client.createProducer(client.createQueue(step.name)).send(question);
        Message request = next(requests, TextMessage.class);
        TextMessage answer = server.createTextMessage("this");
        answer.setJMSCorrelationID(request.getJMSMessageID());
        server.createProducer(request.getJMSReplyTo()).send(answer);
        TextMessage got = next(answered, TextMessage.class);
        equal(got.getText(), "this", "answer");
        equal(got.getJMSCorrelationID(), question.getJMSMessageID(), "correlation id");
        answered.close();
        answers.delete();
    }

    /** Whether somebody else may send to a destination. */
    private static boolean isThere(Step step, Destination destination) throws JMSException {
        try {
            step.session().createProducer(destination).close();
            return true;
        } catch (InvalidDestinationException gone) {
            return false;
        }
    }

    private static void temporaryQueue(Step step) throws Exception {
        Connection owner = step.connect();
        Session session = owner.createSession(false, Session.AUTO_ACKNOWLEDGE);
        TemporaryQueue deleted = session.createTemporaryQueue();
        TemporaryQueue closed = session.createTemporaryQueue();
        MessageConsumer consumer = session.createConsumer(deleted);
        Session other = step.session();
        other.createProducer(deleted).send(other.createTextMessage("x"));
        equal(text(consumer), "x", "in a temporary queue");
        consumer.close();
        equal(isThere(step, deleted), true, "before it is deleted");
        deleted.delete();
        equal(isThere(step, deleted), false, "after it is deleted");
        equal(isThere(step, closed), true, "before its connection ends");
        owner.close();
        equal(isThere(step, closed), false, "after its connection has ended");
    }

    private static void temporaryTopic(Step step) throws Exception {
        Connection owner = step.connect();
        Session session = owner.createSession(false, Session.AUTO_ACKNOWLEDGE);
        TemporaryTopic deleted = session.createTemporaryTopic();
        TemporaryTopic closed = session.createTemporaryTopic();
        MessageConsumer[] consumers = {session.createConsumer(deleted), session.createConsumer(deleted)};
        Session other = step.session();
        other.createProducer(deleted).send(other.createTextMessage("x"));
        for (MessageConsumer consumer : consumers) {
            equal(text(consumer), "x", "of a temporary topic");
            consumer.close();
        }
        equal(isThere(step, deleted), true, "before it is deleted");
        deleted.delete();
        equal(isThere(step, deleted), false, "after it is deleted");
        equal(isThere(step, closed), true, "before its connection ends");
        owner.close();
        equal(isThere(step, closed), false, "after its connection has ended");
    }

    /** One for each request, more than a user may have at a time. */
    private static void manyTemporaryQueues(Step step) throws Exception {
        Session session = step.session();
        for (int request = 0; request < 1_100; request++) {
            TemporaryQueue answers = session.createTemporaryQueue();
            session.createConsumer(answers).close();
            answers.delete();
        }
    }

    private static void anonymousProducer(Step step) throws Exception {
        Session session = step.session();
        Queue queue = session.createQueue(step.name);
        Topic topic = session.createTopic("iop/" + step.name);
        MessageConsumer atQueue = session.createConsumer(queue);
        MessageConsumer atTopic = session.createConsumer(topic);
        MessageProducer producer = session.createProducer(null);
        producer.send(queue, session.createTextMessage("q"));
        producer.send(topic, session.createTextMessage("t"));
        equal(text(atQueue), "q", "at the queue");
        equal(text(atTopic), "t", "at the topic");
    }

    private static void timeToLive(Step step) throws Exception {
        Session session = step.session();
        Queue queue = session.createQueue(step.name);
        MessageProducer producer = session.createProducer(queue);
        producer.setTimeToLive(300);
        producer.send(session.createTextMessage("short"));
        producer.setTimeToLive(0);
        producer.send(session.createTextMessage("long"));
        Thread.sleep(1_500);
        equal(text(session.createConsumer(queue)), "long", "after the first has expired");
    }

    private static void asynchronous(Step step) throws Exception {
        Session session = step.session();
        Queue queue = session.createQueue(step.name);
        MessageProducer producer = session.createProducer(queue);
        java.util.concurrent.CountDownLatch left = new java.util.concurrent.CountDownLatch(200);
        for (int each = 0; each < 200; each++) {
            producer.send(session.createTextMessage(Integer.toString(each)), new jakarta.jms.CompletionListener() {
                @Override
                public void onCompletion(Message message) {
                    left.countDown();
                }

                @Override
                public void onException(Message message, Exception why) {
                    // The count stays above zero, which the step reports.
                }
            });
        }
        if (!left.await(PATIENCE_MS, java.util.concurrent.TimeUnit.MILLISECONDS)) {
            throw new AssertionError(left.getCount() + " of 200 messages were not accepted");
        }
        MessageConsumer consumer = session.createConsumer(queue);
        for (int each = 0; each < 200; each++) {
            equal(text(consumer), Integer.toString(each), "order");
        }
    }

    private static void large(Step step, int size) throws Exception {
        Session session = step.session();
        Queue queue = session.createQueue(step.name);
        byte[] payload = new byte[size];
        for (int at = 0; at < size; at++) {
            payload[at] = (byte) (at % 251);
        }
        BytesMessage message = session.createBytesMessage();
        message.writeBytes(payload);
        session.createProducer(queue).send(message);
        BytesMessage got = next(session.createConsumer(queue), BytesMessage.class);
        byte[] raw = new byte[(int) got.getBodyLength()];
        got.readBytes(raw);
        equal(Arrays.equals(raw, payload), true, "the same bytes");
    }

    private static void unauthorized(Step step) throws Exception {
        Session session = step.session();
        try {
            session.createConsumer(session.createTopic("iop/denied/x"));
        } catch (jakarta.jms.JMSSecurityException why) {
            return;
        }
        throw new AssertionError("a consumer of what is denied");
    }

    private static void browser(Step step) throws Exception {
        Session session = step.session();
        Queue queue = session.createQueue("queue/" + step.name);
        MessageProducer producer = session.createProducer(queue);
        for (int each = 0; each < 3; each++) {
            producer.send(session.createTextMessage(Integer.toString(each)));
        }
        List<String> seen = new ArrayList<>();
        for (Enumeration<?> all = session.createBrowser(queue).getEnumeration(); all.hasMoreElements(); ) {
            seen.add(((TextMessage) all.nextElement()).getText());
        }
        equal(seen, List.of("0", "1", "2"), "what was seen");
        // They are still there.
        equal(text(session.createConsumer(queue)), "0", "what was left");
    }

    /** A message waits for its time in the queue, also from a producer without a destination of its own. */
    private static void deliveryDelay(Step step) throws Exception {
        Session session = step.session();
        Queue queue = session.createQueue("queue/" + step.name);
        MessageConsumer consumer = session.createConsumer(queue);
        MessageProducer fixed = session.createProducer(queue);
        MessageProducer free = session.createProducer(null);
        fixed.setDeliveryDelay(DELAY_MS);
        free.setDeliveryDelay(DELAY_MS);
        long begin = System.currentTimeMillis();
        fixed.send(session.createTextMessage("fixed"));
        free.send(queue, session.createTextMessage("free"));
        fixed.setDeliveryDelay(0);
        fixed.send(session.createTextMessage("at once"));
        equal(text(consumer), "at once", "before those that wait");
        List<String> got = List.of(text(consumer), text(consumer));
        equal(got, List.of("fixed", "free"), "those that have waited");
        equal(System.currentTimeMillis() - begin >= DELAY_MS, true, "not before their time");
    }

    /** A topic delivers at once and does not offer otherwise: the library tells its application. */
    private static void topicDelay(Step step) throws Exception {
        Session session = step.session();
        MessageProducer producer = session.createProducer(session.createTopic("iop/" + step.name));
        producer.setDeliveryDelay(DELAY_MS);
        try {
            producer.send(session.createTextMessage("x"));
        } catch (JMSException why) {
            return;
        }
        throw new AssertionError("a delay that nobody keeps");
    }

    /** What waits is delivered by its priority, in a queue that has them. The queue is one of interop/amqp.toml. */
    private static void priorities(Step step, String transport) throws Exception {
        Session session = step.session();
        Queue queue = session.createQueue("queue/iop-priorities-" + transport);
        MessageProducer producer = session.createProducer(queue);
        for (int priority : new int[] {1, 9, 5}) {
            producer.setPriority(priority);
            producer.send(session.createTextMessage(Integer.toString(priority)));
        }
        MessageConsumer consumer = session.createConsumer(queue);
        equal(List.of(text(consumer), text(consumer), text(consumer)), List.of("9", "5", "1"), "by priority");
    }

    /** A message whose deliveries fail is in the queue of dead letters. Both queues are of interop/amqp.toml. */
    private static void deadLetters(Step step, String transport) throws Exception {
        Session session = step.session(Session.SESSION_TRANSACTED);
        Queue queue = session.createQueue("queue/iop-failing-" + transport);
        MessageProducer producer = session.createProducer(queue);
        producer.send(session.createTextMessage("bad"));
        producer.send(session.createTextMessage("good"));
        session.commit();
        MessageConsumer consumer = session.createConsumer(queue);
        for (int each = 0; each < 2; each++) {
            equal(text(consumer), "bad", "before it has failed twice");
            session.rollback();
        }
        equal(text(consumer), "good", "when it is gone");
        session.commit();
        MessageConsumer dead = session.createConsumer(session.createQueue("queue/iop-dead-" + transport));
        equal(text(dead), "bad", "the dead letter");
        session.commit();
    }
}
