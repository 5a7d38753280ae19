// `ckpt check`: can this host, this process do it, and what is missing.
#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>

#include "cli/dump_flags.h"
#include "cli/gpu_view.h"
#include "cli/plural.h"
#include "cli/program_file.h"
#include "lib/base/linkage.h"
#include "lib/base/text.h"
#include "lib/engine/check.h"
#include "plugins/cuda/driver.h"
#include "plugins/cuda/kernel_image.h"

namespace ckpt::cli {

namespace {

struct CheckFlags {
  int pid = 0;
  ExternalFlags external;
  capture::SocketOptions sockets;
  GpuFlags gpu;
};

/// What `run` uses, of which the engine knows nothing.
void add_features_of_run(std::vector<engine::Feature>& out) {
  auto library = find_interposer();
  out.push_back({"run", "libckpt-cuda.so", library.has_value(), true, "what is preloaded into a program",
                 library ? *library : library.error().text()});
  auto driver = cuda::Driver::open();
  out.push_back({"run", "CUDA driver", driver.has_value(), false, "programs that use a GPU",
                 driver ? "" : driver.error().text()});
  auto kernels = cuda::read_kernels();
  if (auto driver_loads = check_loads_libraries("the CUDA driver"); !driver_loads) kernels = driver_loads.error();
  const std::string why =
      kernels ? "there was no nvcc to build them; CKPT_CUDA_KERNELS can name a file" : kernels.error().text();
  const bool present = kernels && !kernels->empty();
  out.push_back(
      {"run", "device kernels", present, false, "finding by hash what a GPU has written", present ? "" : why});
}

/// The verbs that can do nothing here, with what they lack.
std::map<std::string, std::string> verbs_that_fail(const std::vector<engine::Feature>& host) {
  std::map<std::string, std::string> out;
  for (const engine::Feature& f : host) {
    if (!f.required || f.present) continue;
    std::string& lacks = out[f.verb];
    lacks += (lacks.empty() ? "" : ", ") + f.name;
  }
  return out;
}

void print_json(Console& out, const CheckFlags& flags, const engine::CheckReport& report) {
  nlohmann::ordered_json doc = {{"schema", "ckpt.check/1"}, {"host", nlohmann::ordered_json::array()}};
  for (const engine::Feature& f : report.host) {
    doc["host"].push_back({{"verb", f.verb},
                           {"name", f.name},
                           {"present", f.present},
                           {"required", f.required},
                           {"serves", f.serves},
                           {"detail", f.detail}});
  }
  const auto fail = verbs_that_fail(report.host);
  for (const engine::Feature& f : report.host) doc["verbs"][f.verb] = fail.find(f.verb) == fail.end();
  if (flags.pid != 0) {
    doc["pid"] = flags.pid;
    doc["gpu_processes"] = report.gpu_processes;
    doc["blockers"] = nlohmann::ordered_json::array();
    for (const auto& b : report.blockers)
      doc["blockers"].push_back({{"subject", b.subject}, {"what", b.what}, {"flag", b.flag}});
    doc["notes"] = report.notes;
    doc["gpu"] = nlohmann::ordered_json::parse(gpu_processes_json(report.gpu));
    doc["host_room"] = nlohmann::ordered_json::array();
    for (const engine::HostRoom& room : report.host_room)
      doc["host_room"].push_back({{"limit", room.limit}, {"needed", room.needed}, {"bytes", room.bytes}});
  }
  out.data(doc.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

void print_table(Console& out, const CheckFlags& flags, const engine::CheckReport& report) {
  std::vector<std::vector<std::string>> rows;
  if (flags.pid == 0) {
    std::string verb;
    for (const engine::Feature& f : report.host) {
      const std::string detail = f.detail.empty() ? "" : (f.present ? " (" : ": ") + f.detail + (f.present ? ")" : "");
      rows.push_back({f.verb == verb ? "" : f.verb, f.name,
                      f.present    ? "yes"
                      : f.required ? "NO"
                                   : "no",
                      f.serves + detail});
      verb = f.verb;
    }
    out.table({"VERB", "FEATURE", "HERE", "FOR"}, rows);
  } else if (report.blockers.empty()) {
    out.data(escape_for_terminal(report.process) + ": nothing stands in the way of a dump\n");
  } else {
    for (const auto& b : report.blockers) rows.push_back({b.subject, b.what, b.flag.empty() ? "-" : b.flag});
    out.table({"WHERE", "WHAT", "ALLOWED BY"}, rows);
  }
  for (const std::string& note : report.notes) out.data("note: " + escape_for_terminal(note) + "\n");
  if (report.gpu.empty()) return;
  print_gpu_table(out, report.gpu);
  for (const engine::HostRoom& room : report.host_room) {
    out.data(fmt::format("to move to host memory: {}, about {} at 8 GB/s; {} has room for {}\n",
                         human_bytes(room.needed), human_us(engine::expected_move_us(room.needed)),
                         escape_for_terminal(room.limit), human_bytes(room.bytes)));
  }
}

}  // namespace

Command::Run add_check(VerbOptions& app) {
  auto flags = std::make_shared<CheckFlags>();
  app.add_option("-p,--pid,-t,--tree", flags->pid, "A process: list everything in it that would block a dump")
      .positive();
  add_external_flags(app, flags->external, "As for dump: terminals and pipes from outside the tree are no obstacle",
                     "As for dump: whether pipes from outside the tree are an obstacle");
  add_external_memory_flag(app, flags->external.memory);
  add_socket_flags(app, flags->sockets);
  add_gpu_flag(app, flags->gpu, "As for dump: whether GPU state is an obstacle");
  auto check = [flags](Context& context) -> Result<void> {
    CKPT_TRY_ASSIGN(engine::GpuOptions gpu, gpu_options(flags->gpu));
    CKPT_TRY_ASSIGN(engine::CheckReport report,
                    engine::check(flags->pid, flags->external.finish(), flags->sockets, gpu));
    add_features_of_run(report.host);
    if (context.out.json()) print_json(context.out, *flags, report);
    else print_table(context.out, *flags, report);
    const auto fail_here = flags->pid == 0 ? verbs_that_fail(report.host) : std::map<std::string, std::string>();
    if (!fail_here.empty()) {
      std::vector<std::string> parts;
      for (const auto& [verb, lacks] : fail_here) parts.push_back(fmt::format("{} (lacks {})", verb, lacks));
      return fail(Code::kMismatch, "this host", fmt::format("cannot do at all: {}", fmt::join(parts, ", ")));
    }
    const size_t count = report.blockers.size();
    if (count == 0) return {};
    return fail(Code::kMismatch, "process " + report.process, counted(count, "obstacle"));
  };
  return [flags, check](Context& context) -> Result<void> {
    if (flags->pid == 0) return check(context);
    return where_it_is(flags->pid, context, [&] { return check(context); });
  };
}

}  // namespace ckpt::cli
