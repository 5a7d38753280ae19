#include "formats/pickle/rewrap.h"

#include <cstring>
#include <optional>
#include <vector>

#include "formats/pickle/pickle.h"
#include "lib/base/bytes.h"

namespace ckpt::pickle {

namespace {

enum : unsigned char {
  kProto = 0x80,
  kFrame = 0x95,
  kStop = '.',
  kMark = '(',
  kPop = '0',
  kPopMark = '1',
  kDup = '2',
  kEmptyList = ']',
  kAppend = 'a',
  kAppends = 'e',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kMemoize = 0x94,
  kBinGet = 'h',
  kLongBinGet = 'j',
};

struct Operation {
  unsigned char code = 0;
  uint32_t memo = 0;       ///< argument of the memo opcodes
  std::string_view bytes;  ///< opcode and argument
};

/// Bytes behind an opcode; nothing for opcodes outside formats.md 3.4 and for those that it refuses.
std::optional<uint64_t> argument_size(unsigned char code, ByteReader rest) {
  auto counted = [&](auto width) -> std::optional<uint64_t> {
    auto n = rest.read<decltype(width)>();
    if (!n || *n > rest.remaining()) return std::nullopt;
    return sizeof width + static_cast<uint64_t>(*n);
  };
  auto lines = [&](int n) -> std::optional<uint64_t> {
    const size_t start = rest.position();
    while (n-- > 0) {
      if (!rest.line()) return std::nullopt;
    }
    return rest.position() - start;
  };
  switch (code) {
    case '.':
    case '(':
    case '0':
    case '1':
    case '2':
    case 'N':
    case 0x88:
    case 0x89:
    case ')':
    case 't':
    case 0x85:
    case 0x86:
    case 0x87:
    case ']':
    case 'l':
    case 'a':
    case 'e':
    case '}':
    case 'd':
    case 's':
    case 'u':
    case 0x8F:
    case 0x90:
    case 0x91:
    case 0x94: case 0x93: case 'R': case 'b': case 0x81: case 0x92: case 'Q':
      return 0;
    case kProto: case 'K': case 'h': case 'q': return 1;
    case 'M': return 2;
    case 'J': case 'j': case 'r': return 4;
    case 'G': case kFrame: return 8;
    case 0x8A: case 'U': case 0x8C: case 'C': return counted(uint8_t{});
    case 'X': case 'B': case 'T': case 0x8B: return counted(uint32_t{});
    case 0x8D: case 0x8E: case 0x96: return counted(uint64_t{});
    case 'I': case 'L': case 'F': case 'S': case 'V': case 'g': case 'p': return lines(1);
    case 'c': return lines(2);
    default: return std::nullopt;
  }
}

/// Calls `each(op)` for every opcode but PROTO and FRAME, STOP included. The protocol is returned.
template <class Each>
Result<unsigned char> walk(std::string_view pickle, Each each) {
  ByteReader in(as_bytes(pickle));
  auto first = in.read<uint8_t>(), protocol = in.read<uint8_t>();
  if (!first || *first != kProto || !protocol)
    return fail(Code::kUnsupported, "", "is not a pickle of protocol 2 or later");
  for (;;) {
    const size_t start = in.position();
    auto code = in.read<uint8_t>();
    if (!code) return fail(Code::kCorrupt, "", "the pickle ends without STOP");
    auto size = argument_size(*code, in);
    if (!size || !in.take(*size)) {
      return fail(Code::kCorrupt, "", "the pickle has a bad opcode at byte " + std::to_string(start));
    }
    Operation op;
    op.code = *code;
    op.bytes = pickle.substr(start, in.position() - start);
    if (*size == 1) op.memo = static_cast<unsigned char>(op.bytes[1]);
    if (*size == 4) std::memcpy(&op.memo, op.bytes.data() + 1, 4);
    if (*code != kProto && *code != kFrame) each(op);
    if (*code != kStop) continue;
    if (in.remaining() > 0) return fail(Code::kCorrupt, "", "bytes follow the pickle's STOP");
    return *protocol;
  }
}

std::string header(unsigned char protocol) { return {static_cast<char>(kProto), static_cast<char>(protocol)}; }

}  // namespace

Result<std::string> wrap_in_list(std::string_view pickle) {
  std::string body;
  body.reserve(pickle.size() + 2);
  CKPT_TRY_ASSIGN(unsigned char protocol, walk(pickle, [&](const Operation& op) {
    if (op.code != kStop) body += op.bytes;
  }));
  return header(protocol) + static_cast<char>(kEmptyList) + body + static_cast<char>(kAppend) +
         static_cast<char>(kStop);
}

Result<std::string> unwrap_list(std::string_view pickle) {
  std::vector<Operation> ops;
  CKPT_TRY_ASSIGN(unsigned char protocol, walk(pickle, [&](const Operation& op) { ops.push_back(op); }));
  auto unsupported = [] { return fail(Code::kUnsupported, "", "is not a plain list of one element"); };
  // What the pickle builds, in its own words; the edit below keeps every opcode of the one element.
  CKPT_TRY_ASSIGN(Graph before, parse(as_bytes(pickle)));
  if (before.kind(before.root()) != Kind::kList || before.items(before.root()).size() != 1) return unsupported();
  // EMPTY_LIST [PUT n] body APPEND STOP, where the body never fetches n.
  if (ops.size() < 4 || ops[0].code != kEmptyList || ops[ops.size() - 2].code != kAppend) return unsupported();
  size_t begin = 1;
  std::optional<uint32_t> list;
  if (ops[1].code == kBinPut || ops[1].code == kLongBinPut) {
    list = ops[1].memo;
    begin = 2;
  }
  std::string body;
  for (size_t i = begin; i + 2 < ops.size(); ++i) {
    const Operation& op = ops[i];
    const bool get = op.code == kBinGet || op.code == kLongBinGet;
    if (op.code == kMemoize || op.code == 'g' || (get && list && op.memo == *list)) return unsupported();
    body += op.bytes;
  }
  std::string out = header(protocol) + body + static_cast<char>(kStop);
  if (!parse(as_bytes(out))) return unsupported();
  return out;
}

}  // namespace ckpt::pickle
