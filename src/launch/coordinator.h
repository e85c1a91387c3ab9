#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "launch/coordinator_record.h"
#include "launch/messages.h"
#include "launch/network_survey.h"

namespace lockstep {

/// A connection between a node and the coordinator, as the shell numbers them.
using LinkId = std::uint64_t;

struct CoordinatorOptions {
  JobTerms terms;
  Time join_timeout = std::chrono::seconds(600);   // for enough nodes to come together
  Time last_call = std::chrono::seconds(30);       // for more than enough
  Time reconnect_limit = std::chrono::seconds(2);  // for a node whose connection broke
  Time stop_limit = std::chrono::seconds(90);      // for all nodes to have stopped their workers
  Time reform_limit = std::chrono::seconds(30);    // for all nodes to be ready with survivors
  Time word_limit = std::chrono::seconds(10);  // for survivors to say that they can be carried over
  Time rejoin_after = std::chrono::seconds(30);  // until a place that is left out is tried again
  Time status_interval = std::chrono::seconds(5);
  bool surveys_network = false;                  // before the first epoch of a job of fixed size
  std::vector<std::string> expected_hosts = {};  // where a scheduler has named them
  std::string cure_if_alone = {};                // how the command is started on all of those
  Time start_timeout{0};                         // for a second one of them; 0: as long as for all
  // What a coordinator of this job before this one has left (its time_left counts from now on),
  // whether the process is gone in which that ran, and how long its nodes have to come here.
  std::optional<CoordinatorRecord> record = {};
  bool former_host_is_gone = false;
  Time recall_limit = std::chrono::seconds(5);
};

struct SendTo {
  LinkId link = 0;
  Message message;
};
/// Nothing more is to be heard on this connection.
struct CloseLink {
  LinkId link = 0;
};
/// A node has joined the job, or left it; for the run's events.
struct NodeChange {
  enum class Kind { joined, lost };
  Kind kind = Kind::joined;
  std::string host, address;
  int workers = 0;
  std::string reason = {};  // of a loss
};
/// A line for people, who are told of some changes in other words: then it is empty.
struct Say {
  std::string text;
  std::optional<NodeChange> change = std::nullopt;
};
/// Everyone has heard the end, or could not be told.
struct CoordinatorDone {};

using CoordinatorAction = std::variant<SendTo, CloseLink, Say, CoordinatorDone>;

/// Decides for the whole job: who is a member, when an epoch starts and stops, whether to restart,
/// and how it ends. One per job.
///
/// It has no clock, socket or thread: the shell tells it what happened and when, and does what it
/// answers. The same code runs in the launcher and in the simulation (tests/sim).
///
/// Messages may be lost with a connection. A node that connects again says where it stands, and
/// every command can be repeated without harm, because it names the epoch it is about: what is
/// about another epoch than the current one is answered with a stop, or not at all.
class Coordinator {
 public:
  using Actions = std::vector<CoordinatorAction>;

  Coordinator(const CoordinatorOptions& options, Time now);

  Actions on_message(LinkId link, const Message& message, Time now);
  Actions on_closed(LinkId link, const std::string& reason, Time now);
  /// A signal for the workers that came to the coordinator's own process, where that is no node.
  Actions on_signal(const PassSignal& signal, Time now);

  /// Who runs it asks for the end of the job: because of a signal (0: for another reason). Asked
  /// twice, workers are killed; three times, nobody is waited for.
  Actions on_end_request(int signal, const std::string& reason, Time now);

  /// To be called at next_deadline(), or later.
  Actions on_time(Time now);
  Time next_deadline() const;

  enum class Phase { gathering, preparing, running, stopping, finished };
  Phase phase() const { return phase_; }
  Epoch epoch() const { return epoch_; }
  int restarts() const { return restarts_; }
  int replacements() const { return replacements_; }
  /// Whether workers of the epoch before live on in the one that is being prepared.
  bool is_reforming() const { return phase_ == Phase::preparing && carries_over_; }
  /// Whether ranks are lost, and others have not said yet that they can be carried over.
  bool holds_loss() const { return loss_.has_value(); }
  /// Nodes of the current epoch, by group rank; empty where one was lost and the others go on.
  const std::vector<std::string>& participants() const { return participants_; }
  /// How many places of the current epoch are left out, and how many of those have their node.
  int left_out() const { return static_cast<int>(left_out_.size()); }
  int left_out_with_node() const;

  /// How the job ended, once it is finished.
  const Finish& outcome() const { return finish_; }
  /// For a coordinator that may have to go on here, and a number that grows whenever it has
  /// changed; 0: there is none yet.
  CoordinatorRecord record() const;
  std::uint64_t record_version() const { return record_version_; }

  /// Whether the nodes of an earlier coordinator's record are awaited before an epoch is formed.
  bool recalls() const { return options_.record.has_value(); }

  /// How many nodes and places were looked at so far, one by one. For tests of scale: it must grow
  /// with the messages that are exchanged, and not faster.
  std::uint64_t visits() const { return visits_; }

  /// "2 of 3 nodes have joined: a (10.0.0.1, 4 workers) ...; 1 missing: node rank 2, for 35 s".
  std::string status(Time now) const;

 private:
  struct Node {
    NodeInfo info;
    std::optional<LinkId> link;
    bool hosts_coordinator = false;
    bool leaving = false;
    bool is_recalled = false;  // of a record, and has not come yet
    Time joined{0};
    Time heard{0};
    Time disconnected{0};  // since when, where it has no link
    std::string disconnect_reason;
    std::string network_address;  // that a survey has chosen; empty: none has
    Epoch busy = 0;               // the epoch whose workers it may still have; 0: none
    // Of the current epoch:
    bool participant = false;
    Membership membership;
    bool ready = false;
    bool succeeded = false;
    int store_port = 0;
  };
  struct Departure {
    std::string reason;
    Time when{0};
  };
  struct Ending {
    int code = 0;
    std::string reason;
    bool of_worker = false;  // the earliest failure's code is the job's
  };
  struct Failure {
    Time when{0};
    WorkerFailed report;
  };
  /// Places whose workers are lost and may be replaced, once it is known who can be carried over.
  struct Loss {
    Ending ending;
    std::set<int> ranks;
    Time when{0};
    Time deadline{0};
  };
  /// Which of the lost places get new workers, and which get none.
  struct Filling {
    std::set<int> replaced;
    std::set<int> left_out;
    std::string why;  // they are left out
  };
  /// A scheduler may send one warning to all nodes: what comes from several is passed on once.
  struct SignalRound {
    Time since{0};
    std::set<std::string> origins;
    bool time_known = false;
  };
  struct Obstacle {
    std::string reason;
    bool may_pass = false;  // a rank has not said yet whether it can be carried over
  };

  /// What is asked with every message of a node, so that nobody has to look at all nodes for it.
  struct Counts {
    int members = 0;     // participants
    int linked = 0;      // participants with a connection
    int busy = 0;        // participants that may still have workers
    int unready = 0;     // participants that have not said Ready
    int succeeded = 0;   // participants whose workers have
    int unfinished = 0;  // participants with workers that have not
  };

  void handle(LinkId link, const Join& join);
  void handle(Node& node, const Ready& ready);
  void handle(Node& node, const WorkerFailed& failed);
  void handle(Node& node, const WorkersSucceeded& succeeded);
  void handle(Node& node, const Stopped& stopped);
  void handle(Node& node, const RankRecovers& recovers);
  void handle(Node& node, const CannotReform& cannot);
  void handle(Node& node, const RanksRejected& rejected);
  void handle(Node& node, const Leave& leave);
  void handle(Node& node, const Addresses& answer);
  void handle(Node& node, const Probed& answer);
  void handle(Node& node, const PassSignal& signal);
  void pass_signal(const std::string& origin, const std::string& where, const PassSignal& signal);
  void tell_time_left(Node& node);

  std::optional<std::string> reason_to_refuse(const Join& join) const;
  const Node* holder_of_rank(const NodeInfo& info) const;
  bool is_being_replaced(LinkId link, const Join& join);
  // Whether nodes run the same thing (coordinator_identity.cpp).
  const Node* model_node(const NodeInfo& info) const;
  std::optional<std::string> reason_of_identity(const NodeInfo& info) const;
  void say_what_differs(const NodeInfo& info);
  void attach(Node& node, LinkId link);
  void catch_up(Node& node, const Join& join);
  void lose_who_is_back(Node& node, const Join& join);
  void catch_up_reforming(Node& node, const Join& join);

  // After a coordinator that is gone (coordinator_recall.cpp).
  void recall_if_of_record(const Join& join);
  void recall(const CoordinatorRecord& record);
  void lose_former_host();

  /// False: it cannot be done, and why has been said where that is of interest.
  bool survive(const Node& node, const WorkerFailed& failed);
  bool replace_in_place(const Ending& ending, const std::vector<int>& lost, Time when);
  bool settle_loss();
  void retry_loss();
  std::optional<Obstacle> obstacle_to_carrying_over(const std::set<int>& lost) const;
  void say_not_in_place(const std::string& reason);
  void reform(const Ending& ending, const Filling& filling);
  void give_up_reforming(const std::string& reason);
  void renumber();
  Prepare prepare_in_place(const Node& node) const;
  void settle();
  void end_second_deaths(const std::set<int>& ranks, std::int64_t step);

  // Nodes that are lost while the others go on (coordinator_seats.cpp).
  std::vector<int> places_of_seat(int seat) const;
  int seat_of(int place) const;
  bool go_on_without(const Node& node, const Ending& ending);
  std::map<int, std::string> nodes_for_empty_seats() const;
  std::set<int> places_to_fill(Time time) const;
  void seat_nodes_of(const std::set<int>& places);

  // Places that are left out (coordinator_shrink.cpp).
  Filling fill(const std::set<int>& lost) const;
  std::optional<std::string> reason_to_leave_out(int place) const;
  bool may_leave_out(std::size_t count) const;
  std::string describe(const Ending& ending, const Filling& filling) const;
  void leave_out(const std::set<int>& places);
  std::string count_of_those_in() const;
  std::string words_about_min_world() const;
  std::optional<Time> next_rejoin() const;
  void rejoin_if_due();
  int world_size() const { return places_ - left_out(); }

  // The network between the nodes (coordinator_survey.cpp).
  bool needs_survey(const std::vector<NodeInfo>& nodes) const;
  /// False: it is being looked at, and gather() is called when that is over.
  bool network_is_settled(const std::vector<NodeInfo>& nodes);
  bool surveys() const { return survey_ || survey_again_at_; }
  void ask_about_network();
  void give_up_survey_with(const std::string& id);
  void continue_survey();
  void survey_failed(const std::string& reason);
  void survey_if_due();

  void gather();
  void form();
  void start_if_all_are_ready();
  void begin_stop(const std::string& reason, int signal);
  void stop_or_finish();
  void restart_or_finish(const Ending& ending);
  void finish(int code, const std::string& reason);
  /// `code` is what the job ends with if it cannot go on without the node.
  void lose(const std::string& id, const std::string& reason, int code = 1, bool close = true);
  void forget(const Node& node);
  void grow_if_possible();
  void finish_if_all_succeeded();
  void check_silence();
  /// Every change of a node goes through here (coordinator_counts.cpp), because it may be counted.
  template <typename Change>
  void change(Node& node, Change what) {
    count(node, -1);
    what();
    count(node, +1);
    if (survey_ && !is_free(node)) give_up_survey_with(node.info.id);
  }
  /// Whether it could be a member.
  static bool is_free(const Node& node) { return node.link && node.busy == 0; }
  void count(const Node& node, int sign);
  void erase(const std::string& id);
  void visit(std::size_t nodes_or_places) const { visits_ += nodes_or_places; }
  /// Participants that were lost after they had succeeded, and so are no nodes any more.
  bool lacks_participants() const;
  void lose_all(const std::vector<std::pair<std::string, std::string>>& ids_and_reasons);
  void send(Node& node, const Message& message);
  void send_to_all(const Message& message);
  Actions take();
  Node* node_of(LinkId link);
  /// Null when it was lost from the current epoch.
  Node* participant(const std::string& id);
  /// Participants that may still have workers.
  std::vector<std::string> still_busy();
  std::vector<NodeInfo> candidates() const;
  std::string describe_missing(std::size_t present) const;
  std::vector<std::string> expected_and_absent() const;
  void end_if_alone();
  /// What next_rejoin() said, until something happens.
  std::optional<Time> known_rejoin() const;

  CoordinatorOptions options_;
  Phase phase_ = Phase::gathering;
  Epoch epoch_ = 0;
  int places_ = 1;           // of that epoch
  Epoch highest_epoch_ = 0;  // seen anywhere, also under a coordinator that is gone
  int restarts_ = 0;
  Time now_{0};
  Time gathering_since_{0};
  std::optional<Time> last_call_;
  Time stop_deadline_{0};
  Time next_beat_{0};
  Time next_status_{0};
  Time done_at_{0};
  int end_requests_ = 0;
  Time recall_until_{0};
  std::optional<Time> recorded_end_;    // of the job, by a warning before this coordinator
  std::set<std::string> recorded_ids_;  // of the record's participants
  std::string former_host_;             // that is to be lost
  std::uint64_t record_version_ = 0;
  bool done_ = false;
  std::map<std::string, Node> nodes_;  // by id
  Counts counts_;
  std::set<std::string> free_;                    // ids of nodes that could be members
  std::map<int, std::set<std::string>> by_rank_;  // ids of nodes with a connection, by node rank
  // Ids of nodes with a connection, the coordinator's own first, then those who came first.
  std::set<std::tuple<bool, Time, std::string>> elders_;
  mutable std::uint64_t visits_ = 0;
  std::map<LinkId, std::string> links_;
  std::optional<NetworkSurvey> survey_;
  std::uint64_t next_round_ = 1;
  Time survey_deadline_{0};
  std::optional<Time> survey_again_at_;
  int failed_surveys_ = 0;                 // in a row
  std::map<std::string, Time> claims_;     // on a node rank that is held, by id
  std::vector<std::string> participants_;  // ids by group rank; empty where one is absent
  std::vector<NodeInfo> seats_;            // as they are, or were when they were lost
  std::vector<int> first_places_;          // by seat
  bool collects_losses_ = false;           // several nodes are lost at once
  std::set<int> absent_;                   // group ranks without a node, while the others go on
  bool lost_someone_ = false;              // since the last epoch was formed
  std::map<std::string, Departure> departures_;  // by host
  std::vector<Failure> failures_;                // of the current epoch
  std::set<std::pair<Epoch, int>> failed_;       // likewise: epoch and rank
  std::vector<int> stopped_ranks_;               // likewise
  bool resume_ = false;  // a worker that was stopped asks to be started again
  // Workers that are replaced while the others live on.
  bool carries_over_ = false;            // this epoch took workers over from the one before
  bool settled_ = true;                  // and all of its ranks have shown that they go on
  int replacements_ = 0;                 // workers started in place of others, in the whole job
  std::set<int> with_state_;             // ranks that can be carried over
  std::set<int> withdrawn_;              // that cannot any more
  std::optional<Loss> loss_;             // that waits for the words of others
  std::map<int, std::int64_t> goes_on_;  // ranks that have shown it in this epoch, and their step
  std::set<int> replaced_;               // ranks whose new worker has not shown its state yet
  std::map<int, Time> left_out_;         // places, and when they are tried again
  std::map<int, int> absences_;          // how often they were, since they took part
  std::set<int> unstartable_;            // places whose last process the system refused to start
  bool was_loss_ = true;                 // what the ranks that go on were stopped for
  std::set<int> lost_ranks_;             // since all went on for the last time
  std::map<int, int> deaths_;            // likewise, how often
  std::map<int, std::int64_t> died_at_;  // the step at which the job went on after its last death
  Time lost_since_{0};
  Time reform_deadline_{0};
  std::map<int, SignalRound> signal_rounds_;  // the latest, by signal
  std::optional<Time> ends_at_;               // the scheduler's end of the job, once it has warned
  Ending cause_;                              // of the loss
  std::optional<Ending> ending_;  // what follows when all have stopped; unset: another epoch
  Start start_;                   // of the current epoch
  Finish finish_;                 // once finished
  mutable std::optional<std::optional<Time>> rejoin_;
  Actions actions_;
};

}  // namespace lockstep
