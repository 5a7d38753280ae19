// The small objects of a store, JSON in ASCII: what it is, what has which name, who is writing, what may go.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/result.h"
#include "lib/repository/id.h"

namespace ckpt::repository {

constexpr uint64_t kMaxDocument = 16 << 20;

/// "config": written once.
struct Config {
  std::string id;         ///< random
  std::string key_check;  ///< an id made of `id` by the key, in hex; empty: there is no key
};
std::string to_json(const Config& config);
Result<Config> parse_config(std::string_view text, const std::string& subject);

/// "images/NAME": what was pushed under a name.
struct Ref {
  std::string name;
  std::string created;  ///< of a process image when it was taken, else as `pushed`; RFC 3339 in UTC
  std::string pushed;
  std::string kind;    ///< "process" or "model"
  std::string format;  ///< of a model: "safetensors", ...; of a process image "dump", "pre-dump" or "job"
  std::string path;    ///< of what was pushed below the folder that a pull makes; empty: it is that folder
  uint64_t bytes = 0;  ///< of all files
  uint64_t files = 0, images = 0;
  uint64_t tree_bytes = 0;
  std::string tree;  ///< the list (tree.h) of the chunks of the tree
};
/// A line of JSON and a line with its digest by `seal`.
std::string encode_ref(const Ref& ref, const IdBuilder& seal);
/// kCorrupt: another digest, another name, or what cannot be.
Result<Ref> parse_ref(std::string_view text, const std::string& name, const IdBuilder& seal,
                      const std::string& subject);
/// Of a draft ("pushes/ID.name"), whatever it is to be called.
Result<Ref> parse_draft(std::string_view text, const IdBuilder& seal, const std::string& subject);
/// Names: letters, digits and -._+=,: at most 128 of them, no dot or dash in front.
Result<void> check_name(const std::string& name);

/// "pushes/ID": a push, a gc or a repair is under way.
struct Marker {
  std::string host, boot_id;
  uint64_t pid_namespace = 0, pid = 0, pid_start = 0;
  std::string kind = "push";          ///< or "gc" or "repair"
  std::string since, refreshed;       ///< RFC 3339 in UTC
  std::vector<std::string> honoured;  ///< the condemnations that it has seen: it refers to nothing in them
};
std::string to_json(const Marker& marker);
Result<Marker> parse_marker(std::string_view text, const std::string& subject);

/// "pushes/ID.dead": somebody concluded from its silence that it is dead.
struct TakenForDead {
  std::string since;
};
std::string to_json(const TakenForDead& taken);
Result<TakenForDead> parse_taken_for_dead(std::string_view text, const std::string& subject);

/// "condemned/ID": packs that nothing needed when somebody looked.
struct Condemned {
  std::string since;
  std::vector<std::string> packs;
};
std::string to_json(const Condemned& condemned);
Result<Condemned> parse_condemned(std::string_view text, const std::string& subject);

}  // namespace ckpt::repository
