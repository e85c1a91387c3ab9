#include "launch/leadership.h"

#include <algorithm>
#include <utility>

#include "core/parse_integer.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

EtcdRequest lease_request(Time time) {
  return grant_lease(whole_seconds(time));
}

}  // namespace

Leadership::Leadership(const LeadershipOptions& options, Time now)
    : options_(options), now_(now), next_look_(now) {}

// ---- one request after another ----

void Leadership::ask(Asked what, EtcdRequest request) {
  asked_ = what;
  actions_.emplace_back(AskEtcd{std::move(request)});
}

// What is to be done next, if nothing is under way and it is time.
void Leadership::next() {
  if (asked_ != Asked::nothing || resigned_) return;
  if (resigns_) {
    // After trouble it is not known whether the key is still there.
    if (leads_ && own_revision_ == 0 && !looked_) {
      return ask(Asked::look, range_of_prefix(options_.keys.folder()));
    }
    if (!leads_ || own_revision_ == 0) {
      resigned_ = true;
      return;
    }
    if (record_.empty()) return ask(Asked::revocation, revoke_lease(lease_));
    return ask(Asked::last_lease, lease_request(options_.end_is_kept));
  }
  if (wants_claim_) return claim();
  const bool in_trouble = !trouble_.empty();
  if (leads_ && own_revision_ != 0 && !record_is_kept_ && (!in_trouble || now_ >= next_look_)) {
    next_look_ = std::max(next_look_, now_ + options_.hurry_interval);
    written_number_ = record_number_;
    const LeaderKeys& keys = options_.keys;
    std::vector<EtcdCondition> fence;
    fence.push_back({keys.leader(), own_revision_});
    fence.push_back({keys.record(), record_revision_});
    return ask(Asked::record,
               put_if(fence, {{keys.record(), keys.seal(keys.record(), record_), 0}}));
  }
  if (now_ < next_look_) return;
  if (leads_ && lease_is_alive_ && looked_) {
    looked_ = false;
    return ask(Asked::keep_alive, keep_lease_alive(lease_));
  }
  const bool is_calm = leads_ ? own_revision_ != 0 : in_touch_;
  next_look_ = now_ + (is_calm ? options_.look_interval : options_.hurry_interval);
  ask(Asked::look, range_of_prefix(options_.keys.folder()));
}

Leadership::Actions Leadership::on_time(Time now) {
  now_ = now;
  next();
  return take_actions();
}

Time Leadership::next_deadline() const {
  return asked_ != Asked::nothing || resigned_ ? Time::max() : next_look_;
}

Leadership::Actions Leadership::on_failure(const std::string& reason, Time now) {
  now_ = now;
  const Asked asked = std::exchange(asked_, Asked::nothing);
  wants_claim_ = false;
  if (asked == Asked::claim) lease_is_alive_ = false;  // it may have been too old
  next_look_ = now + options_.look_interval;
  if (resigns_) {
    resigned_ = true;  // what is left goes with its lease
    return take_actions();
  }
  if (trouble_.empty()) {
    say(concat("etcd cannot be asked (", reason, "): ",
               leads_ || in_touch_
                   ? "the job runs on, but its next epoch waits, and no node can take the "
                     "coordinator over meanwhile"
                   : "waiting for it"));
  }
  trouble_ = reason;
  // A lease is not kept without etcd, and may not outlive it. Nor does the key's revision: an etcd
  // that comes back without its data counts from the beginning.
  looked_ = false;
  own_revision_ = 0;
  return take_actions();
}

Leadership::Actions Leadership::on_reply(std::string_view body, Time now) {
  now_ = now;
  const Asked asked = std::exchange(asked_, Asked::nothing);
  try {
    take(asked, body);
  } catch (const InvalidArgument& error) {
    asked_ = asked;
    actions_.clear();
    return on_failure(error.what(), now);
  }
  if (!trouble_.empty()) {
    say("etcd answers again");
    trouble_.clear();
  }
  next();
  return take_actions();
}

void Leadership::take(Asked asked, std::string_view body) {
  switch (asked) {
    case Asked::look:
      looked_ = true;
      return after_look(read_range(body));
    case Asked::lease:
      lease_ = read_granted_lease(body);
      lease_is_alive_ = true;
      return;
    case Asked::claim:
      return after_claim(read_txn(body));
    case Asked::keep_alive:
      if (read_kept_lease(body) == 0) lease_is_alive_ = false;
      next_look_ = std::min(next_look_, now_);  // whose is the key?
      return;
    case Asked::record: {
      const EtcdTxnReply written = read_txn(body);
      if (!written.succeeded) {
        own_revision_ = 0;  // the key is gone, or another's; or an earlier record came late
        next_look_ = now_;
        return;
      }
      record_revision_ = written.revision;
      record_is_kept_ = written_number_ == record_number_;  // another may have come meanwhile
      actions_.emplace_back(RecordKept{written_number_});
      return;
    }
    case Asked::last_lease: {
      const EtcdLease last = read_granted_lease(body);
      const LeaderKeys& keys = options_.keys;
      return ask(Asked::last_record,
                 put_if({{keys.leader(), own_revision_}},
                        {{keys.record(), keys.seal(keys.record(), record_), last},
                         {keys.term(), keys.seal(keys.term(), std::to_string(term_)), last}}));
    }
    case Asked::last_record:
      return ask(Asked::revocation, revoke_lease(lease_));
    case Asked::revocation:
      resigned_ = true;
      return;
    case Asked::nothing:
      return;
  }
}

// ---- who leads ----

void Leadership::after_look(const std::vector<EtcdValue>& values) {
  leader_revision_ = term_revision_ = record_revision_ = 0;
  seen_term_ = 0;
  seen_leader_.reset();
  seen_record_.clear();
  const LeaderKeys& keys = options_.keys;
  for (const EtcdValue& each : values) {
    const auto text = keys.open(each.key, each.value);
    if (each.key == keys.leader()) {
      leader_revision_ = each.mod_revision;
      if (text) seen_leader_ = leader_from_json(*text);
      if (!seen_leader_ && !std::exchange(told_forgery_, true)) {
        say(concat("etcd's key ", each.key,
                   " was not written with this job's secret: ignoring it"));
      }
    } else if (each.key == keys.term()) {
      term_revision_ = each.mod_revision;
      if (text) seen_term_ = parse_integer<std::uint64_t>(*text).value_or(0);
    } else if (each.key == keys.record()) {
      record_revision_ = each.mod_revision;
      if (text) seen_record_ = *text;
    }
  }
  decide();
}

void Leadership::decide() {
  const Leader& self = options_.self;
  if (seen_leader_ && seen_leader_->id == self.id && seen_leader_->address == self.address &&
      seen_leader_->port == self.port && seen_leader_->term >= term_) {
    // Ours; perhaps etcd took it and its answer was lost.
    own_revision_ = leader_revision_;
    claimed_term_ = seen_leader_->term;
    if (!leads_ && !resigns_) return lead();
    if (!lease_is_alive_) wants_claim_ = true;  // it would go with the old lease
    return;
  }
  if (resigns_) return;
  const bool is_newer =
      seen_leader_ && (seen_leader_->term > term_ ||
                       (seen_leader_->term == term_ && seen_leader_->id != leader_id_));
  if (is_newer) return follow(*seen_leader_);
  if (leads_ && seen_term_ > term_) {
    // While this node could not ask, another led, and is gone or cannot ask either. What that one
    // has begun is in the record, not here.
    say(concat("etcd knows of a later coordinator (term ", seen_term_,
               "): the coordinator here gives up"));
    stop_leading();
    term_ = seen_term_;
    leader_id_.clear();
    actions_.emplace_back(GiveUp{});
    return;
  }
  if (leads_) {
    own_revision_ = 0;
    lease_is_alive_ = false;
    wants_claim_ = true;  // the key is gone, and the lease with it, or of an earlier term
    return;
  }
  const bool is_current = seen_leader_ && seen_leader_->term == term_;
  // As long as its coordinator is heard of, that writes its key itself.
  if (!is_current && !in_touch_) wants_claim_ = true;
}

// First a lease, then the key with it; and only if etcd is still as it was seen.
void Leadership::claim() {
  if (!lease_is_alive_) {
    return ask(Asked::lease, lease_request(options_.lease));
  }
  wants_claim_ = false;
  claimed_term_ = leads_ ? term_ : std::max(term_, seen_term_) + 1;
  Leader leader = options_.self;
  leader.term = claimed_term_;
  const LeaderKeys& keys = options_.keys;
  ask(Asked::claim,
      put_if({{keys.leader(), leader_revision_},
              {keys.term(), term_revision_},
              {keys.record(), record_revision_}},
             {{keys.leader(), keys.seal(keys.leader(), to_json(leader)), lease_},
              {keys.term(), keys.seal(keys.term(), std::to_string(claimed_term_)), 0}}));
}

void Leadership::after_claim(const EtcdTxnReply& reply) {
  next_look_ = now_;
  if (!reply.succeeded) {
    lease_is_alive_ = false;  // somebody was faster; nobody keeps this one
    return;
  }
  own_revision_ = reply.revision;
  looked_ = true;
  next_look_ = now_ + options_.look_interval;
  if (!leads_) return lead();
  say("the coordinator's key is in etcd again");
  // Etcd may have lost all that it had.
  if (!record_.empty()) record_is_kept_ = false;
}

void Leadership::lead() {
  leads_ = true;
  term_ = claimed_term_;
  leader_id_ = options_.self.id;
  actions_.emplace_back(Lead{term_, seen_record_});
}

void Leadership::follow(const Leader& leader) {
  if (leads_) {
    say(concat("the coordinator's key in etcd is that of ", leader.host, " (term ", leader.term,
               "): the coordinator here gives up"));
  }
  stop_leading();
  term_ = leader.term;
  leader_id_ = leader.id;
  actions_.emplace_back(Follow{leader});
}

void Leadership::stop_leading() {
  leads_ = in_touch_ = lease_is_alive_ = false;
  own_revision_ = 0;
  record_.clear();
  record_is_kept_ = true;
}

Leadership::Actions Leadership::on_touch(bool in_touch, Time now) {
  now_ = now;
  const bool was = std::exchange(in_touch_, in_touch);
  if (was && !in_touch) next_look_ = std::min(next_look_, now);
  next();
  return take_actions();
}

// ---- records ----

Leadership::Actions Leadership::keep(std::string record, std::uint64_t number, Time now) {
  now_ = now;
  if (!leads_) return take_actions();
  record_ = std::move(record);
  record_number_ = number;
  record_is_kept_ = false;
  next();
  return take_actions();
}

Leadership::Actions Leadership::resign(Time now) {
  now_ = now;
  resigns_ = true;
  next();
  return take_actions();
}

}  // namespace lockstep
