// Which of many saves are kept. Numbers and names only: what is on the disk is the caller's to find out.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ckpt::schedule {

/// A save is kept if one of the rules wants it.
struct RetentionRules {
  uint64_t keep_last = 0;   ///< the newest so many
  uint64_t keep_every = 0;  ///< those whose number is a multiple of this
  uint64_t keep_daily = 0;  ///< the last one of each of the newest so many days (UTC) that have one
  bool any() const { return keep_last + keep_every + keep_daily > 0; }
};

/// One save that is there.
struct KnownSave {
  std::string name;
  std::string created;           ///< RFC 3339 in UTC: two are compared as text
  std::string parent;            ///< the name of the one that it needs; empty: none, or it lies elsewhere
  std::optional<uint64_t> step;  ///< the number in its name
};

/// What makes one of two the newer: its time; or its number, where one program gives the numbers, since a clock may
/// have been set back between the two.
enum class Order { kTime, kNumber };
bool is_newer(const KnownSave& a, const KnownSave& b, Order order);

/// The names of those that may go, the oldest first. Never among them: the newest, and what one that is kept needs.
/// Without a rule nothing goes.
std::vector<std::string> superfluous(std::vector<KnownSave> saves, const RetentionRules& rules,
                                     Order order = Order::kTime);

/// How many saves a chain has, from this one to the first, itself counted. 0: there is none of that name.
uint64_t chain_length(const std::vector<KnownSave>& saves, const std::string& name);

/// The name of the next one: eight digits, one more than the greatest number that is there.
std::string next_name(const std::vector<std::string>& names);

}  // namespace ckpt::schedule
