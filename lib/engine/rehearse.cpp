#include "lib/engine/rehearse.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "lib/base/clock.h"
#include "lib/base/io.h"
#include "lib/base/progress.h"
#include "lib/engine/rehearse_compare.h"
#include "lib/engine/rehearse_image.h"
#include "lib/engine/rehearse_pages.h"
#include "lib/engine/restore_tree.h"
#include "lib/engine/sealed.h"
#include "lib/proc/packet_filter.h"
#include "lib/state/inside.h"
#include "lib/store/description.h"

namespace ckpt::engine {

namespace {

/// Which parts of an XSAVE area are in their initial state, that is, in use or not: a part that is used holds the same
/// then.
void pass_over_unused(std::vector<std::byte>& area) {
  constexpr size_t kFeatures = 512;  // XSTATE_BV
  if (area.size() >= kFeatures + sizeof(uint64_t))
    std::fill_n(area.begin() + kFeatures, sizeof(uint64_t), std::byte{0});
}

class Notes final : public ProgressSink {
 public:
  explicit Notes(std::vector<std::string>& out) : out_(out) {}
  void begin(std::string_view, uint64_t) override {}
  void advance(uint64_t) override {}
  void note(std::string_view text) override { out_.emplace_back(text); }

 private:
  std::vector<std::string>& out_;
};

/// What says nothing about the image.
bool is_of_this_run(Code code) {
  return code == Code::kNoRoom || code == Code::kPermission || code == Code::kInterrupted;
}

/// One rehearsal, in the sealed place, of an image that was adjusted to it.
class Stage {
 public:
  Stage(store::ImageReader& image, std::set<size_t> strange_sockets, Rehearsal& out, const Cancel& cancel)
      : image_(image), strange_sockets_(std::move(strange_sockets)), out_(out), cancel_(cancel), notes_(out.notes) {}

  Result<void> run() {
    if (auto made = make(); !made) return failed("cannot be made again", made.error());
    if (auto read = read_back(); !read) return failed("cannot be described once it is made again", read.error());
    return compare();
  }

 private:
  Result<void> failed(const char* what, const Error& error) {
    if (is_of_this_run(error.code)) return error;
    const std::string name = name_of(tree().root());
    out_.differences.push_back(fmt::format("{}: {}: {}", name, what, error.text()));
    for (const std::string& cause : error.causes) out_.differences.push_back(fmt::format("{}: {}", name, cause));
    return {};
  }

  const store::TreeImage& tree() const { return image_.manifest().tree; }

  Result<void> make() {
    restore::Options how;
    how.parent_stays = true;
    CKPT_TRY_ASSIGN(rebuild_, restore::Rebuild::prepare(image_, how, notes_));
    CKPT_TRY(hold_connections());
    CKPT_TRY(rebuild_->build(cancel_));
    return rebuild_->settle();
  }

  /// No answer comes from peers that are not there, and what is in the queues of others stays where it is. Only
  /// connections that end need to hear of each other.
  Result<void> hold_connections() {
    constexpr int kEstablished = 1;
    std::vector<proc::FilteredConnection> connections;
    for (const store::Socket& socket : tree().sockets) {
      if (socket.tcp.state == kEstablished && socket.state == store::SocketState::kConnected)
        connections.push_back({socket.name, socket.peer_name});
    }
    if (connections.empty()) return {};
    CKPT_TRY_ASSIGN(proc::PacketFilter filter, proc::PacketFilter::create("rehearsal", connections));
    filter_.emplace(std::move(filter));
    return {};
  }

  Result<void> read_back() {
    const int root = tree().root().pid;
    CKPT_TRY_ASSIGN(std::vector<proc::TreeEntry> entries, proc::read_tree(root));
    CKPT_TRY_ASSIGN(members_, capture::open_members(entries));
    capture::InventoryOptions how;
    how.frozen = true;
    how.ghost_limit = ~uint64_t{0};
    how.sockets.tcp_established = how.sockets.external_unix = true;
    CKPT_TRY_ASSIGN(found_, capture::take_inventory(members_, how));
    for (const capture::Blocker& blocker : found_.blockers)
      out_.differences.push_back("after the restore: " + blocker.text());
    made_ = std::move(found_.image);
    xstates_.resize(made_.processes.size());
    std::map<int, proc::FrozenProcess> frozen;
    std::map<int, proc::ParasiteArea> areas;
    for (restore::Rebuild::Built& process : rebuild_->built()) {
      const int index = index_of(process.pid);
      if (index < 0) return fail(Code::kBug, fmt::format("process {}", process.pid), "is not there");
      const store::ProcessImage& image =
          tree().processes[std::min<size_t>(static_cast<size_t>(index), tree().processes.size() - 1)];
      const int stopped_by = image.stopped ? image.stop_signal : 0;
      frozen.emplace(process.pid, proc::FrozenProcess::adopt(process.pid, std::move(process.threads), stopped_by));
    }
    for (size_t i = 0; i < made_.processes.size(); ++i) {
      const store::ProcessImage& process = made_.processes[i];
      if (process.zombie) continue;
      const size_t memory = process.memory_of < 0 ? i : static_cast<size_t>(process.memory_of);
      CKPT_TRY_ASSIGN(proc::Gadgets gadgets, proc::find_gadgets(process.pid, found_.vmas[memory]));
      CKPT_TRY_ASSIGN(proc::ParasiteArea area, proc::ParasiteArea::map(process.pid, process.pid, gadgets));
      const proc::ParasiteArea& room = areas.emplace(process.pid, std::move(area)).first->second;
      CKPT_TRY(capture::describe_inside(frozen.at(process.pid), room, found_, made_, i, xstates_[i]));
    }
    for (auto& [pid, area] : areas) CKPT_TRY(area.unmap());
    return {};
  }

  int index_of(int pid) const {
    for (size_t i = 0; i < made_.processes.size(); ++i) {
      if (made_.processes[i].pid == pid) return static_cast<int>(i);
    }
    return -1;
  }

  Result<void> compare() {
    std::vector<capture::PagePlan> populated(made_.processes.size());
    for (size_t i = 0; i < made_.processes.size(); ++i) {
      store::ProcessImage& process = made_.processes[i];
      if (process.zombie || process.memory_of >= 0) continue;
      CKPT_TRY_ASSIGN(proc::Pagemap pagemap, proc::Pagemap::open(process.pid));
      CKPT_TRY_ASSIGN(auto pages, capture::scan_private(pagemap, process.maps, capture::ScanFor::kPopulated));
      populated[i] = capture::plan_data(pages, capture::ScanFor::kPopulated, process.maps);
    }
    std::vector<std::string> differences = compare_trees(tree(), made_, strange_sockets_);
    out_.differences.insert(out_.differences.end(), differences.begin(), differences.end());
    CKPT_TRY(compare_registers());
    CKPT_TRY(compare_contents());
    return compare_pages(populated);
  }

  Result<void> compare_registers() {
    for (size_t i = 0; i < std::min(made_.processes.size(), tree().processes.size()); ++i) {
      const store::ProcessImage& was = tree().processes[i];
      out_.processes += 1, out_.threads += was.threads.size();
      for (size_t t = 0; t < std::min(was.threads.size(), xstates_[i].size()); ++t) {
        CKPT_TRY_ASSIGN(std::vector<std::byte> area,
                        image_.read_xstate(was.threads[t].xstate_offset, was.threads[t].xstate_size));
        std::vector<std::byte>& now = xstates_[i][t];
        const size_t size = std::min(area.size(), now.size());
        pass_over_unused(area), pass_over_unused(now);
        const auto at =
            std::mismatch(area.begin(), area.begin() + static_cast<ptrdiff_t>(size), now.begin()).first - area.begin();
        if (static_cast<size_t>(at) != size) {
          out_.differences.push_back(fmt::format(
              "{}: thread {}: its extended registers (XSAVE area, from byte {} on) are others after the restore",
              name_of(was), was.threads[t].tid, at));
        }
      }
    }
    return {};
  }

  Result<void> compare_contents() {
    auto compare = [&](uint64_t offset, uint64_t size, const std::vector<std::byte>& now,
                       std::string name) -> Result<void> {
      if (size != now.size()) return {};  // told already
      CKPT_TRY_ASSIGN(std::vector<std::byte> then,
                      size == 0 ? std::vector<std::byte>() : image_.read_pipe(offset, size));
      if (then != now) out_.differences.push_back(name + ": its content is another after the restore");
      return {};
    };
    for (size_t i = 0; i < std::min(tree().pipes.size(), found_.pipe_contents.size()); ++i)
      CKPT_TRY(compare(tree().pipes[i].content_offset, tree().pipes[i].content_size, found_.pipe_contents[i],
                       fmt::format("pipes[{}]", i)));
    for (size_t i = 0; i < std::min(tree().sockets.size(), found_.socket_contents.size()); ++i) {
      if (strange_sockets_.count(i) == 0)
        CKPT_TRY(compare(tree().sockets[i].content_offset, tree().sockets[i].content_size, found_.socket_contents[i],
                         fmt::format("sockets[{}]", i)));
    }
    for (size_t i = 0; i < std::min(tree().io_urings.size(), found_.io_uring_contents.size()); ++i)
      CKPT_TRY(compare(tree().io_urings[i].content_offset, tree().io_urings[i].content_size,
                       found_.io_uring_contents[i], fmt::format("io_urings[{}]", i)));
    for (size_t i = 0; i < std::min(tree().aio_contexts.size(), found_.aio_contents.size()); ++i)
      CKPT_TRY(compare(tree().aio_contexts[i].content_offset, tree().aio_contexts[i].content_size,
                       found_.aio_contents[i], fmt::format("aio_contexts[{}]", i)));
    return {};
  }

  Result<void> compare_pages(const std::vector<capture::PagePlan>& populated) {
    PageComparison pages(image_, out_.differences, cancel_);
    for (size_t i = 0; i < std::min(made_.processes.size(), tree().processes.size()); ++i) {
      const store::ProcessImage& was = tree().processes[i];
      if (!was.zombie && was.memory_of < 0) CKPT_TRY(pages.process(tree(), i, name_of(was), populated[i]));
    }
    for (size_t i = 0; i < std::min(tree().shared_memory.size(), found_.shared_memory.size()); ++i)
      CKPT_TRY(pages.content(tree().shared_memory[i].space, tree().shared_memory[i].size, found_.shared_memory[i],
                             fmt::format("shared_memory[{}]", i)));
    for (const store::FileIdentity& file : tree().files) {
      for (size_t j = 0; j < made_.files.size(); ++j) {
        if (file.space >= 0 && made_.files[j].deleted && made_.files[j].path == file.path)
          CKPT_TRY(pages.content(file.space, file.size, found_.ghosts[j], "file " + file.path));
      }
    }
    out_.pages = pages.pages();
    return {};
  }

  store::ImageReader& image_;
  const std::set<size_t> strange_sockets_;
  Rehearsal& out_;
  const Cancel& cancel_;
  Notes notes_;
  std::optional<proc::PacketFilter> filter_;
  std::unique_ptr<restore::Rebuild> rebuild_;
  std::vector<capture::Member> members_;
  capture::Inventory found_;
  store::TreeImage made_;
  std::vector<std::vector<std::vector<std::byte>>> xstates_;
};

Result<void> perform(const std::filesystem::path& dir, store::Trust trust, Rehearsal& out) {
  ::signal(SIGCHLD, SIG_DFL);
  Cancel none;  // who asks for the end takes the whole place away
  CKPT_TRY_ASSIGN(std::unique_ptr<store::ImageReader> image, store::ImageReader::open(dir, trust));
  Adjustment adjusted(image->manifest().tree);
  out.left_out = std::move(adjusted.left_out);
  store::describe_anew(*image, std::move(adjusted.tree));
  return Stage(*image, std::move(adjusted.strange_sockets), out, none).run();
}

// What is found goes through a file in memory.

std::string to_report(const Result<void>& done, const Rehearsal& found) {
  nlohmann::json doc = {{"differences", found.differences}, {"left_out", found.left_out}, {"notes", found.notes},
                        {"processes", found.processes}, {"threads", found.threads}, {"pages", found.pages}};
  if (!done) {
    const Error& e = done.error();
    doc["error"] = {{"code", static_cast<int>(e.code)},
                    {"subject", e.subject},
                    {"message", e.text()},
                    {"hint", e.hint},
                    {"causes", e.causes}};
  }
  return doc.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Result<Rehearsal> from_report(const std::string& text) {
  const nlohmann::json doc = nlohmann::json::parse(text, nullptr, false);
  if (!doc.is_object()) return fail(Code::kIo, "", "the rehearsal ended before it could say anything");
  if (auto error = doc.find("error"); error != doc.end()) {
    Error out(static_cast<Code>((*error)["code"].get<int>()), "", (*error)["message"].get<std::string>());
    out.hint = (*error)["hint"].get<std::string>();
    out.causes = (*error)["causes"].get<std::vector<std::string>>();
    return out;
  }
  Rehearsal out;
  out.differences = doc["differences"].get<std::vector<std::string>>();
  out.left_out = doc["left_out"].get<std::vector<std::string>>();
  out.notes = doc["notes"].get<std::vector<std::string>>();
  out.processes = doc["processes"].get<uint64_t>(), out.threads = doc["threads"].get<uint64_t>(),
  out.pages = doc["pages"].get<uint64_t>();
  return out;
}

//// No prefix of ours in what a person reads.
void name_files_as_they_were(std::vector<std::string>& lines) {
  const std::string prefix = kSealedScratch;
  for (std::string& line : lines) {
    for (size_t at = line.find(prefix + "/"); at != std::string::npos; at = line.find(prefix + "/", at))
      line.erase(at, prefix.size());
  }
}

}  // namespace

Result<Rehearsal> rehearse(const std::filesystem::path& image, store::Trust trust, const Cancel& cancel) {
  Stopwatch watch;
  const std::filesystem::path dir = std::filesystem::absolute(image);
  // What may be sealed, and how, is the image's word, too: nothing of a stranger's is used.
  CKPT_TRY_ASSIGN(std::unique_ptr<store::ImageReader> reader, store::ImageReader::open(dir, trust));
  CKPT_TRY(check_leases(reader->manifest().tree));
  const store::Namespaces& namespaces = reader->manifest().tree.namespaces;
  if (!namespaces.own.empty() || !namespaces.further.empty())
    return fail(Code::kUnsupported, image.string(),
                "is of processes in namespaces of their own, which are not rehearsed");
  const SealOptions seal = seal_for(reader->manifest().tree);
  reader.reset();
  UniqueFd report(::memfd_create("ckpt-rehearsal", MFD_CLOEXEC));
  if (!report) return sys_error("", "no file in memory can be made");
  auto work = [&](Result<void> sealed) {
    Rehearsal found;
    if (sealed) sealed = perform(dir, trust, found);
    else if (sealed.error().code == Code::kPermission)
      sealed = std::move(sealed).error().with_hint("a rehearsal needs root");
    return io::write_all(report.get(), as_bytes(to_report(sealed, found)), "report") ? 0 : 1;
  };
  CKPT_TRY_ASSIGN(int code, run_sealed(seal, work, cancel));
  constexpr uint64_t kLimit = uint64_t{1} << 30;
  if (::lseek(report.get(), 0, SEEK_SET) != 0) return sys_error("", "the rehearsal's report cannot be read");
  CKPT_TRY_ASSIGN(std::string text, io::read_all(report.get(), kLimit, "report"));
  if (text.empty())
    return fail(Code::kIo, dir.string(),
                fmt::format("the rehearsal ended with status {} before it could say anything", code));
  CKPT_TRY_ASSIGN(Rehearsal out, from_report(text));
  name_files_as_they_were(out.differences);
  out.us = watch.elapsed_us();
  return out;
}

}  // namespace ckpt::engine
