package gantry.compat;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;

/** Commands for what Gantry does another way: each says what to use instead. An Apache RocketMQ serves them. */
final class Refused {
    private final Fixture on;
    private final Tool tool;

    Refused(Fixture on) {
        this.on = on;
        this.tool = on.tool;
    }

    void addTo(Map<String, Mqadmin.Step> steps) {
        steps.put("updateNamesrvConfig is refused", whereItIs(() -> tool.refused("conf/namesrv.toml", "updateNamesrvConfig", "-k", "a", "-v", "b")));
        steps.put("access control is refused", whereItIs(Tool.FIVE ? this::accessControl : this::oldAccessControl));
        if (Tool.FIVE) {
            steps.put("static topics are refused", whereItIs(this::staticTopics));
            steps.put("masters and slaves are refused", whereItIs(this::mastersAndSlaves));
            steps.put("the controller is refused", whereItIs(this::controller));
            steps.put("broker containers are refused", whereItIs(this::containers));
            steps.put("cold data settings are refused", whereItIs(this::coldData));
            steps.put("RocksDB is refused", whereItIs(this::rocksDb));
            steps.put("lite topics are refused", whereItIs(this::liteTopics));
            steps.put("switchTimerEngine is refused", whereItIs(() -> tool.refused("one timer engine", "switchTimerEngine", "-b", leader(), "-e", "F")));
        }
    }

    private Mqadmin.Step whereItIs(Mqadmin.Step step) {
        return () -> {
            if (!on.isApache) {
                step.run();
            }
        };
    }

    private String leader() {
        return on.leaders.get(0);
    }

    private void accessControl() throws Exception {
        String why = "no access control";
        tool.refused(why, "createUser", "-b", leader(), "-u", "u", "-p", "p");
        tool.refused(why, "updateUser", "-b", leader(), "-u", "u", "-p", "p");
        tool.refused(why, "deleteUser", "-b", leader(), "-u", "u");
        tool.refused(why, "getUser", "-b", leader(), "-u", "u");
        tool.refused(why, "listUser", "-b", leader());
        tool.refused(why, "copyUser", "-f", leader(), "-t", leader(), "-u", "u");
        tool.refused(why, "createAcl", "-b", leader(), "-s", "User:u", "-r", "Topic:*", "-a", "PUB", "-d", "ALLOW");
        tool.refused(why, "updateAcl", "-b", leader(), "-s", "User:u", "-r", "Topic:*", "-a", "PUB", "-d", "ALLOW");
        tool.refused(why, "deleteAcl", "-b", leader(), "-s", "User:u");
        tool.refused(why, "getAcl", "-b", leader(), "-s", "User:u");
        tool.refused(why, "listAcl", "-b", leader());
        tool.refused(why, "copyAcl", "-f", leader(), "-t", leader(), "-s", "User:u");
    }

    private void oldAccessControl() throws Exception {
        String why = "no access control";
        tool.refused(why, "updateAclConfig", "-b", leader(), "-a", "accesskey", "-s", "secretkey");
        tool.refused(why, "deleteAclConfig", "-b", leader(), "-a", "accesskey");
        tool.refused(why, "clusterAclConfigVersion", "-b", leader());
        tool.refused(why, "updateGlobalWhiteAddr", "-b", leader(), "-g", "10.0.0.1");
    }

    private void staticTopics() throws Exception {
        tool.refused("no static topics", "updateStaticTopic", "-c", on.cluster, "-t", on.topic + "_static", "-qn", "4");
        tool.refused("Mapping info should not be null", "remappingStaticTopic", "-c", on.cluster, "-t", on.topic);
    }

    private void mastersAndSlaves() throws Exception {
        tool.refused("gantry status", "haStatus", "-b", leader());
        tool.refused("gantry status", "getBrokerEpoch", "-c", on.cluster);
        tool.refused("gantry status", "resetMasterFlushOffset", "-b", leader(), "-o", "0");
    }

    private void controller() throws Exception {
        String why = "no controller";
        tool.refused(why, "getSyncStateSet", "-a", leader(), "-c", on.cluster);
        tool.refused(why, "getControllerMetaData", "-a", leader());
        tool.refused(why, "getControllerConfig", "-a", leader());
        tool.refused(why, "updateControllerConfig", "-a", leader(), "-k", "a", "-v", "b");
        tool.refused(why, "electMaster", "-a", leader(), "-b", "1", "-bn", on.brokerNames.get(0), "-c", on.cluster);
        tool.refused(why, "cleanBrokerMetadata", "-a", leader(), "-bn", on.brokerNames.get(0), "-c", on.cluster, "-l");
    }

    private void containers() throws Exception {
        tool.refused("no broker container", "addBroker", "-c", leader(), "-b", "/nowhere");
        tool.refused("no broker container", "removeBroker", "-c", leader(), "-b", on.cluster + ":" + on.brokerNames.get(0) + ":1");
    }

    private void coldData() throws Exception {
        String why = "storage.cold_read_rate";
        tool.refused(why, "getColdDataFlowCtrInfo", "-b", leader());
        tool.refused(why, "updateColdDataFlowCtrGroupConfig", "-b", leader(), "-g", on.group, "-v", "1000000");
        tool.refused(why, "removeColdDataFlowCtrGroupConfig", "-b", leader(), "-g", on.group);
        tool.refused(why, "setCommitLogReadAheadMode", "-b", leader(), "-m", "0");
    }

    private void rocksDb() throws Exception {
        tool.refused("no RocksDB", "rocksDBConfigToJson", "-c", on.cluster);
        tool.refused("no RocksDB", "checkRocksdbCqWriteProgress", "-c", on.cluster);
        tool.refused("no RocksDB", "exportPopRecord", "-b", leader());
    }

    private void liteTopics() throws Exception {
        String why = "no lite topics";
        tool.refused(why, "getBrokerLiteInfo", "-b", leader());
        // These print no more of an answer than that it is an error.
        String failed = on.brokerNames.get(0) + "] error.";
        tool.refused(failed, "getParentTopicInfo", "-p", on.topic);
        tool.refused(failed, "getLiteTopicInfo", "-p", on.topic, "-l", "l");
        tool.refused(failed, "getLiteClientInfo", "-p", on.topic, "-g", on.group, "-c", "c");
        tool.refused(failed, "getLiteGroupInfo", "-p", on.topic, "-g", on.group);
        tool.refused("error", "triggerLiteDispatch", "-p", on.topic, "-g", on.group);
    }
}
