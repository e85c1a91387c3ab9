#pragma once

/// Numbers of the fields in W&B's messages (wandb_internal.proto) that are written here.
namespace lockstep::wandb {

// Record
inline constexpr int kRecordNumber = 1, kHistory = 2, kSummary = 3, kConfig = 5, kFiles = 6,
                     kStats = 7, kMetric = 12, kOutputRaw = 13, kRun = 17, kExit = 18, kHeader = 21;
// RunRecord
inline constexpr int kRunId = 1, kEntity = 2, kProject = 3, kRunConfig = 4, kRunGroup = 6,
                     kJobType = 7, kDisplayName = 8, kNotes = 9, kTags = 10, kHost = 13,
                     kStartingStep = 14, kStartTime = 17, kResumed = 18;
// ConfigRecord, SummaryRecord; HistoryRecord; their items
inline constexpr int kUpdate = 1, kHistoryItem = 1, kHistoryStep = 2, kItemKey = 1, kItemValue = 16;
// MetricRecord and its options
inline constexpr int kMetricName = 1, kGlobName = 2, kStepMetric = 4, kMetricOptions = 6,
                     kStepSync = 1, kDefined = 3;
// StatsRecord, OutputRawRecord
inline constexpr int kStatsTime = 2, kStatsItem = 3, kOutputType = 1, kOutputTime = 2,
                     kOutputLine = 3;
// RunExitRecord
inline constexpr int kExitCode = 1, kRuntime = 2;

}  // namespace lockstep::wandb
