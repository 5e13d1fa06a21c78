package gantry.compat;

import static gantry.compat.Tool.await;
import static gantry.compat.Tool.check;
import static gantry.compat.Tool.equal;
import static gantry.compat.Tool.rows;

import java.util.List;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.rocketmq.client.producer.SendResult;

/** Commands that send, find, print and consume messages. */
final class Messages {
    private final Fixture on;
    private final Tool tool;

    Messages(Fixture on) {
        this.on = on;
        this.tool = on.tool;
    }

    void addTo(Map<String, Mqadmin.Step> steps) {
        steps.put("queryMsgById", this::queryMsgById);
        steps.put("queryMsgByKey", this::queryMsgByKey);
        steps.put("queryMsgByUniqueKey", this::queryMsgByUniqueKey);
        steps.put("queryMsgByOffset", this::queryMsgByOffset);
        steps.put("printMsg", this::printMsg);
        steps.put("printMsgByQueue", this::printMsgByQueue);
        steps.put("consumeMessage", this::consumeMessage);
        steps.put("queryCq", this::queryCq);
        steps.put("sendMessage", this::sendMessage);
        steps.put("queryMsgTraceById", this::queryMsgTraceById);
        steps.put("sendMsgStatus", this::sendMsgStatus);
        steps.put("checkMsgSendRT", this::checkMsgSendRt);
    }

    private String key() {
        return "key" + (on.sent.size() - 1);
    }

    /** What is printed of the message sent last. */
    private void isLast(String printed) {
        SendResult last = on.last();
        check(printed.matches("(?s).*Topic:\\s+" + on.topic + "\\s.*"), "wrong topic", printed);
        check(printed.matches("(?s).*Keys:\\s+\\[?" + key() + "\\]?\\s.*"), "wrong key", printed);
        check(printed.matches("(?s).*Queue ID:\\s+" + last.getMessageQueue().getQueueId() + "\\s.*"), "wrong queue", printed);
        check(printed.matches("(?s).*Queue Offset:\\s+" + last.getQueueOffset() + "\\s.*"), "wrong queue offset", printed);
    }

    private String[] byId(String id, String... more) {
        List<String> command = new java.util.ArrayList<>(List.of("queryMsgById", "-i", id));
        if (Tool.FIVE) {
            command.addAll(List.of("-t", on.topic));
        }
        command.addAll(List.of(more));
        return command.toArray(new String[0]);
    }

    private void queryMsgById() throws Exception {
        isLast(tool.run(byId(on.last().getOffsetMsgId())));
        // Clients say every 5 s where they are.
        await("the group to have consumed it", 20,
            () -> tool.run(byId(on.last().getOffsetMsgId())).contains("MessageTrack [consumerGroup=" + on.group + ", trackType=CONSUMED"));
        int before = on.consumed.size();
        String pushed = tool.run(byId(on.last().getOffsetMsgId(), "-g", on.group, "-d", on.clientId()));
        check(pushed.contains("consumeResult=CR_SUCCESS"), "the client did not consume it", pushed);
        equal(before + 1, on.consumed.size(), "messages consumed", pushed);
        on.consumed.remove(on.last().getMsgId());
        // An id that names no message.
        String id = on.last().getOffsetMsgId();
        String none = tool.attempt(byId(id.substring(0, 16) + "00000FFFFFFFFFFF"));
        check(!none.contains("Queue Offset:"), "found", none);
    }

    private void queryMsgByKey() throws Exception {
        String printed = tool.run("queryMsgByKey", "-t", on.topic, "-k", key());
        List<String[]> rows = rows(printed, row -> row[0].equals(on.last().getMsgId()));
        equal(1, rows.size(), "rows of the message", printed);
        equal("" + on.last().getMessageQueue().getQueueId(), rows.get(0)[1], "queue", printed);
        equal("" + on.last().getQueueOffset(), rows.get(0)[2], "queue offset", printed);
        if (Tool.FIVE) {
            String early = tool.attempt("queryMsgByKey", "-t", on.topic, "-k", key(), "-b", "0", "-e", "1000");
            check(!early.contains(on.last().getMsgId()), "not in that time", early);
            long now = System.currentTimeMillis();
            String today = tool.run("queryMsgByKey", "-t", on.topic, "-k", key(), "-b", "" + (now - 3_600_000), "-e", "" + (now + 60_000));
            check(today.contains(on.last().getMsgId()), "in the last hour", today);
        }
    }

    private void queryMsgByUniqueKey() throws Exception {
        isLast(tool.run("queryMsgByUniqueKey", "-t", on.topic, "-i", on.last().getMsgId()));
        String pushed = tool.run("queryMsgByUniqueKey", "-t", on.topic, "-i", on.last().getMsgId(), "-g", on.group, "-d", on.clientId());
        check(pushed.contains("consumeResult=CR_SUCCESS"), "the client did not consume it", pushed);
        on.consumed.remove(on.last().getMsgId());
    }

    private void queryMsgByOffset() throws Exception {
        SendResult last = on.last();
        isLast(tool.run("queryMsgByOffset", "-t", on.topic, "-b", last.getMessageQueue().getBrokerName(), "-i", "" + last.getMessageQueue().getQueueId(),
            "-o", "" + last.getQueueOffset()));
    }

    private static long ids(String printed) {
        return printed.lines().filter(line -> line.startsWith("MSGID: ")).count();
    }

    private void printMsg() throws Exception {
        String all = tool.run("printMsg", "-t", on.topic, "-d", "true");
        equal((long) on.sent.size(), ids(all), "messages", all);
        check(all.contains("BODY: body 0"), "the first body", all);
        String odd = tool.run("printMsg", "-t", on.topic, "-s", "Odd");
        equal((long) on.sent.size() / 2, ids(odd), "messages with a tag", odd);
        String later = tool.run("printMsg", "-t", on.topic, "-b", "" + (System.currentTimeMillis() + 60_000));
        equal(0L, ids(later), "messages of the future", later);
    }

    private void printMsgByQueue() throws Exception {
        SendResult last = on.last();
        String printed = tool.run("printMsgByQueue", "-t", on.topic, "-a", last.getMessageQueue().getBrokerName(), "-i", "" + last.getMessageQueue().getQueueId(),
            "-p", "true", "-d", "true", "-f", "true");
        equal(last.getQueueOffset() + 1, ids(printed), "messages", printed);
        check(printed.matches("(?s).*Tag: (Odd|Even) +Count: [1-9].*"), "counts of tags", printed);
    }

    private void consumeMessage() throws Exception {
        SendResult last = on.last();
        String some = tool.run("consumeMessage", "-t", on.topic, "-c", "5");
        // It ends early where a queue ends.
        check(ids(some) >= 1 && ids(some) <= 5, "one to five messages", some);
        String queue = tool.run("consumeMessage", "-t", on.topic, "-b", last.getMessageQueue().getBrokerName(), "-i", "" + last.getMessageQueue().getQueueId(),
            "-o", "" + last.getQueueOffset(), "-c", "1");
        check(queue.contains(last.getMsgId()), "the message at a place", queue);
        String timed = tool.run("consumeMessage", "-t", on.topic, "-g", on.group + "_tool", "-s", "0", "-e", "" + (System.currentTimeMillis() - 1), "-c", "1000");
        equal((long) on.sent.size(), ids(timed), "messages of all time", timed);
    }

    private void queryCq() throws Exception {
        SendResult last = on.last();
        String printed = tool.run("queryCq", "-t", on.topic, "-q", "" + last.getMessageQueue().getQueueId(), "-i", "0", "-c", "10", "-g", on.group,
            "-b", on.leaders.get(on.brokerNames.indexOf(last.getMessageQueue().getBrokerName())));
        Matcher ends = Pattern.compile("max: (\\d+), min: 0").matcher(printed);
        check(ends.find() && Long.parseLong(ends.group(1)) == last.getQueueOffset() + 1, "ends of the queue", printed);
        check(printed.contains("ConsumeQueueData{physicOffset="), "entries", printed);
    }

    private void sendMessage() throws Exception {
        String printed = tool.run("sendMessage", "-t", on.topic, "-p", "by the tool", "-k", "toolkey" + on.run, "-c", "Tool");
        // Broker name, queue, result, id.
        List<String[]> rows = rows(printed, row -> row.length == 4 && row[2].equals("SEND_OK"));
        equal(1, rows.size(), "rows", printed);
        String found = tool.run("queryMsgByKey", "-t", on.topic, "-k", "toolkey" + on.run);
        check(found.contains(rows.get(0)[3]), "the message by its key", found);
        String chosen = tool.run("sendMessage", "-t", on.topic, "-p", "by the tool", "-b", on.brokerNames.get(0), "-i", "1");
        equal(1, rows(chosen, row -> row.length == 4 && row[0].equals(on.brokerNames.get(0)) && row[1].equals("1") && row[2].equals("SEND_OK")).size(), "rows", chosen);
    }

    /** The trace of a message that the tool sends is itself a message, found by its key. */
    private void queryMsgTraceById() throws Exception {
        await("a trace to be found", 60, () -> {
            // The tool ends without waiting long for its trace to be sent.
            String sent = tool.run("sendMessage", "-t", on.topic, "-p", "traced", "-m", "true");
            String id = rows(sent, row -> row.length == 4 && row[2].equals("SEND_OK")).get(0)[3];
            Thread.sleep(1_000);
            String printed = tool.attempt("queryMsgTraceById", "-i", id);
            // Type, producer group, client host, time, cost, status.
            return rows(printed, row -> row[0].equals("Pub") && row[row.length - 1].equals("success")).size() == 1;
        });
    }

    private void sendMsgStatus() throws Exception {
        String printed = tool.run("sendMsgStatus", "-b", on.brokerNames.get(0), "-c", "3", "-s", "100");
        equal(3L, printed.lines().filter(line -> line.matches("rt=\\d+ms, SendResult=SendResult \\[sendStatus=SEND_OK.*")).count(), "messages", printed);
    }

    private void checkMsgSendRt() throws Exception {
        String printed = tool.run("checkMsgSendRT", "-t", on.topic, "-a", "6", "-s", "64");
        equal(6, rows(printed, row -> row.length == 4 && on.brokerNames.contains(row[0]) && row[2].equals("true")).size(), "messages", printed);
        check(printed.contains("Avg RT: "), "no mean", printed);
    }
}
