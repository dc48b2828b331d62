// One consume queue as both releases can show it. Formats: docs of mqfast/store/FORMAT.md.
package mqfast.oracle;

public interface QueueView {
    interface UnitSink {
        void unit(long cqOffset, long physicalOffset, int size, Long tagsCode, Integer batchNum) throws Exception;
    }

    String topic();

    int queueId();

    long minOffset();

    long maxOffset();

    long maxPhysicOffset();

    long minLogicOffset();

    /** Adds what only this release knows (queue type, last offset). */
    void extras(java.util.Map<String, Object> row);

    void forEachUnit(UnitSink sink) throws Exception;
}
