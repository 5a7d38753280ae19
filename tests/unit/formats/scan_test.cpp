// The pickle scan: what a loader would import, where, and whether it is harmless.
#include "formats/pickle/scan.h"

#include <algorithm>

#include "tests/unit/formats/helpers.h"

using namespace ckpt;
using namespace ckpt::test;
using namespace ckpt::pickle;
using namespace std::string_literals;

namespace {

/// "posix.system@0:dangerous ...", "!" and why at the end of a scan that did not reach STOP.
std::string scanned(const std::string& data) {
  const Scan result = scan(as_bytes(data));
  std::string out;
  for (const Import& import : result.imports) {
    out += (out.empty() ? "" : " ") + import.name + "@" + std::to_string(import.offset) + (import.nested ? "+" : "") +
           ":" + std::string(verdict_name(import.classification.verdict));
  }
  return result.stopped.empty() ? out : out + " !" + result.stopped;
}

Verdict verdict(std::string_view module, std::string_view name) { return classify_global(module, name).verdict; }

}  // namespace

TEST_CASE("scan: the public collection of hostile pickles is judged right") {
  const auto folder = fixture("picklescan-hostile");
  if (!folder) return;
  for (const auto& [file, wanted] : std::initializer_list<std::pair<const char*, const char*>>{
           {"benign0_v0.pkl", ""},
           {"benign0_v3.pkl", ""},
           {"benign0_v4.pkl", ""},
           {"malicious1_v0.pkl", "__builtin__.eval@0:dangerous"},
           {"malicious1_v3.pkl", "builtins.eval@2:dangerous"},
           {"malicious1_v4.pkl", "builtins.eval@29:dangerous"},
           {"malicious2_v0.pkl", "posix.system@0:dangerous"},
           {"malicious2_v3.pkl", "posix.system@2:dangerous"},
           {"malicious2_v4.pkl", "posix.system@28:dangerous"},
           {"malicious9.pkl", "sys.exit@24:dangerous"}}) {
    auto bytes = io::read_file(*folder / file, 1 << 20);
    REQUIRE(bytes);
    CHECK_MESSAGE(scanned(*bytes) == wanted, file, ": ", scanned(*bytes));
  }
  for (const char* file :
       {"malicious-invalid-bytes.pkl", "sys_module_override_sploit.pkl", "pytorch_magic_bypass.pt"}) {
    auto bytes = io::read_file(*folder / file, 1 << 20);
    REQUIRE(bytes);
    CHECK_MESSAGE(scanned(*bytes).find(":dangerous") != std::string::npos, file, ": ", scanned(*bytes));
  }
}

TEST_CASE("scan: what was named before a mistake is judged, for Python runs it before the mistake") {
  CHECK(scanned("cos\nsystem\n(X\x02\x00\x00\x00idtRz"s) ==
        "os.system@0:dangerous !an unknown opcode at byte 21 of the pickle");
  CHECK(scanned("cos\nsystem\n(X\x02\x00\x00\x00idtR"s).find("os.system@0:dangerous !the pickle is truncated") == 0);
}

TEST_CASE("scan: every way to name a global is seen") {
  CHECK(scanned("(S'id'\nios\nsystem\n.") == "os.system@7:dangerous");
  CHECK(scanned("(cos\nsystem\nS'id'\no.") == "os.system@1:dangerous");
  CHECK(scanned("V\\u006fs\nVsyste\\u006d\n\x93.") == "os.system@22:dangerous");
  CHECK(scanned("S'\\x6fs'\nS'\\163ystem'\n\x93.") == "os.system@22:dangerous");
  CHECK(scanned("\x80\x02\x82\x07.").find("copyreg.<extension>@2:dangerous") == 0);
  CHECK(scanned("P7\n.") == "");
  // A name that a call makes, and one that is longer than any name.
  CHECK(scanned("cbuiltins\nstr\n)R\x8c\x01x\x93.").find("?.<computed>@19:dangerous") != std::string::npos);
  CHECK(scanned("c" + std::string(5000, 'a') + "\nx\n.") == "?.<computed>@0:dangerous");
}

TEST_CASE("scan: a module's names that are overwritten are dangerous whatever the module is") {
  CHECK(scanned("cfoo\nbar\n}b.") == "foo.bar@0:unknown foo.bar@10:dangerous");
  CHECK(scanned("cfoo\nbar\nK\x01K\x02s.") == "foo.bar@0:unknown foo.bar@13:dangerous");
}

TEST_CASE("scan: getattr is harmless only where it names a member of a known enum") {
  const std::string member = "ctorch.distributed.checkpoint.metadata\n_MEM_FORMAT_ENCODING\n";
  CHECK(scanned("cbuiltins\ngetattr\n(" + member + "VA\ntR.").find("dangerous") == std::string::npos);
  CHECK(scanned("cbuiltins\ngetattr\n(" + member + "V__class__\ntR.").find("getattr@0:dangerous") != std::string::npos);
  CHECK(scanned("cbuiltins\ngetattr\n(cfoo\nbar\nVA\ntR.").find("getattr@0:dangerous") != std::string::npos);
  CHECK(scanned("cbuiltins\ngetattr\n.").find("getattr@0:dangerous") != std::string::npos);
}

TEST_CASE("scan: pickles within the pickle are scanned, two levels deep, and no deeper") {
  const std::string evil = "\x80\x02" "cos\nsystem\n."s;
  auto wrap = [](const std::string& inner) { return "\x80\x04" "B"s + char(inner.size()) + "\0\0\0"s + inner + "."; };
  CHECK(scanned(wrap(evil)) == "os.system@9+:dangerous");
  CHECK(scanned(wrap(wrap(evil))) == "os.system@16+:dangerous");
  CHECK(scanned(wrap(wrap(wrap(evil)))) == "");
  // Under protocol 2 bytes are written as text.
  CHECK(scanned("\x80\x02"
                "c_codecs\nencode\n(X\x0f\0\0\0\xc2\x80\x02"
                "cos\nsystem\n.X\x06\0\0\0latin1tR."s)
            .find("os.system@24+:dangerous") != std::string::npos);
}

TEST_CASE("scan: names are judged by module, by name and by where a dotted name leads") {
  CHECK(verdict("collections", "OrderedDict") == Verdict::kSafe);
  CHECK(verdict("torch", "BFloat16Storage") == Verdict::kSafe);
  CHECK(verdict("megatron.core.enums", "ModelType") == Verdict::kSafe);
  CHECK(verdict("torch.nested._internal.nested_tensor", "_rebuild_njt") == Verdict::kSafe);
  CHECK(verdict("torch._dynamo.decorators", "_DimRange") == Verdict::kSafe);
  CHECK(verdict("torch._dynamo.decorators", "run") == Verdict::kDangerous);
  CHECK(verdict("torch.distributed._shard.sharded_tensor.api", "ShardedTensor") == Verdict::kSafe);
  CHECK(verdict("torch.cuda.sparse", "HalfTensor") == Verdict::kSafe);
  CHECK(verdict("my.package", "Config") == Verdict::kUnknown);
  CHECK(verdict("osmium", "system") == Verdict::kUnknown);
  CHECK(verdict("os.path", "join") == Verdict::kDangerous);
  CHECK(verdict("__builtin__", "eval") == Verdict::kDangerous);
  CHECK(verdict("torch", "serialization.os.system") == Verdict::kDangerous);
  CHECK(verdict("pathlib", "PosixPath.unlink") == Verdict::kUnknown);
  CHECK(verdict("torch", "x.Storage") == Verdict::kUnknown);
  CHECK(verdict("foo", "bar.__globals__") == Verdict::kDangerous);
  CHECK(verdict("torch.hub", "load_state_dict_from_url") == Verdict::kDangerous);
}
