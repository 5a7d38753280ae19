#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>
#include <unordered_map>

#include "formats/pickle/escapes.h"
#include "formats/pickle/opcodes.h"
#include "formats/pickle/pickle.h"
#include "lib/base/checked.h"
#include "lib/base/program_cancel.h"

namespace ckpt::pickle {

namespace {

constexpr size_t kMaxName = 4096;      ///< of a module or an attribute: names are compared at every use
constexpr size_t kMaxChanged = 1000;
constexpr uint64_t kBetweenLooks = 1 << 16;  ///< opcodes, before the stop flag is asked again: a millisecond

/// What stands for a global whose name is only known once code has run.
constexpr struct { std::string_view module = "?", name = "<computed>"; } kComputed;

}  // namespace

/// Runs one pickle. Every operation returns false after it set `why_`; nothing it is fed can make it read outside the
/// pickle or use more memory than a fixed multiple of the pickle's size.
class Machine {
 public:
  /// `loose`: as a Python that runs anything would take it, see parse_loosely.
  Machine(ByteSpan data, const Limits& limits, bool loose = false) : reader_(data), limits_(limits), loose_(loose) {
    graph_.data_ = data;
    // One node for about seven bytes is what torch's and Megatron's metadata come to. What is reserved and not used is
    // never touched; what would have to grow is copied, which took a third of the time.
    constexpr size_t kMostReserved = 1 << 26;
    graph_.nodes_.reserve(std::min<size_t>(data.size() / 6 + 16, kMostReserved));
    graph_.items_.reserve(std::min<size_t>(data.size() / 2 + 16, kMostReserved));  // growing dicts leave holes behind
    memo_.reserve(std::min<size_t>(data.size() / 12, kMostReserved));
    small_ints_.fill(kNoNode);
    data_size_ = data.size();
  }

  Result<Graph> run() {
    CKPT_TRY(execute());
    return std::move(graph_);
  }

  LooseGraph run_loosely() {
    LooseGraph out;
    if (auto done = execute(); !done) out.stopped = done.error().message;
    graph_.consumed_ = reader_.position();
    out.graph = std::move(graph_);
    out.changed = std::move(changed_);
    return out;
  }

 private:
  using Node = Graph::Node;

  Result<void> execute() {
    if (data_size_ > limits_.bytes) return fail(Code::kCorrupt, "", "the pickle is larger than the limit");
    for (uint64_t count = 0; !stopped_; ++count) {
      const size_t at = at_ = reader_.position();
      auto op = reader_.read<uint8_t>();
      if (!op) return fail(Code::kCorrupt, "", "the pickle is truncated at byte " + std::to_string(at));
      if (count >= limits_.opcodes || graph_.nodes_.size() >= limits_.nodes) {
        return fail(Code::kCorrupt, "", "the pickle has more operations than the limit");
      }
      if (count % kBetweenLooks == kBetweenLooks - 1) CKPT_TRY(check_program_cancel());
      if (!step(*op)) {
        return fail(unsupported_ ? Code::kUnsupported : Code::kCorrupt, "",
                    why_ + " at byte " + std::to_string(at) + " of the pickle");
      }
    }
    graph_.consumed_ = reader_.position();
    return {};
  }

  bool bad(const char* why) {
    why_ = why;
    return false;
  }
  bool refuse(const char* what) {
    unsupported_ = true;
    why_ = std::string("pickle opcode ") + what + " is not allowed in a checkpoint";
    return false;
  }
  bool truncated() { return bad("truncated"); }

  // --- the stack
  // -------------------------------------------------------------------------------------------------------
  size_t fence() const { return marks_.empty() ? 0 : marks_.back(); }
  bool has(size_t n) { return stack_.size() - fence() >= n || bad("the stack is too short"); }
  NodeId pop() {
    NodeId out = stack_.back();
    stack_.pop_back();
    return out;
  }
  bool push(NodeId id) {
    if (stack_.size() >= limits_.stack) return bad("the stack is larger than the limit");
    stack_.push_back(id);
    return true;
  }
  bool push_node(const Node& node) {
    graph_.nodes_.push_back(node);
    return push(static_cast<NodeId>(graph_.nodes_.size() - 1));
  }
  /// None and the bools: one node each.
  bool push_simple(Kind kind, bool flag = false) {
    NodeId& shared = kind == Kind::kNone ? none_ : bools_[flag ? 1 : 0];
    if (shared != kNoNode) return push(shared);
    shared = static_cast<NodeId>(graph_.nodes_.size());
    Node node;
    node.kind = kind;
    node.flag = flag;
    return push_node(node);
  }
  /// Numbers of one byte are half of all nodes; those of a value share one.
  bool push_int(int64_t value) {
    if (value >= 0 && value < static_cast<int64_t>(small_ints_.size())) {
      NodeId& shared = small_ints_[static_cast<size_t>(value)];
      if (shared != kNoNode) return push(shared);
      shared = static_cast<NodeId>(graph_.nodes_.size());
    }
    Node node;
    node.kind = Kind::kInt;
    node.integer = value;
    return push_node(node);
  }
  bool push_float(double value) {
    Node node;
    node.kind = Kind::kFloat;
    node.real = value;
    return push_node(node);
  }
  bool push_text(Kind kind, uint64_t length) {
    if (length > limits_.string_bytes) return bad("a string is longer than the limit");
    size_t at = reader_.position();
    if (!reader_.take(length)) return truncated();
    Node node;
    node.kind = kind;
    node.size = static_cast<uint32_t>(length);
    node.offset = at;
    return push_node(node);
  }
  /// `n` nodes from the top of the stack become a container.
  bool push_container(Kind kind, size_t n) {
    if (kind == Kind::kDict && n % 2 != 0) return bad("a dict with a key but no value");
    Node node;
    node.kind = kind;
    node.size = static_cast<uint32_t>(n);
    node.range = {static_cast<uint32_t>(graph_.items_.size()), static_cast<uint32_t>(n)};
    if (!items_fit(n)) return false;
    graph_.items_.insert(graph_.items_.end(), stack_.end() - static_cast<ptrdiff_t>(n), stack_.end());
    stack_.resize(stack_.size() - n);
    return push_node(node);
  }
  bool items_fit(uint64_t more) {
    // Each push costs an opcode; growing containers doubles at most.
    return graph_.items_.size() + more <= 4 * limits_.nodes || bad("containers are larger than the limit");
  }
  bool pop_mark(size_t& count) {
    if (marks_.empty()) return bad("a mark is missing");
    count = stack_.size() - marks_.back();
    marks_.pop_back();
    return true;
  }

  /// Moves the top `n` nodes behind a container's items. Amortised: a container that is not the last one of the arena
  /// moves to its end with twice the room.
  bool extend(uint32_t& first, uint32_t& count, uint32_t& capacity, size_t n) {
    if (uint64_t{count} + n > capacity) {
      uint64_t room = std::max<uint64_t>(uint64_t{count} + n, uint64_t{capacity} * 2);
      auto& items = graph_.items_;
      if (first + uint64_t{capacity} != items.size()) {
        if (!items_fit(room)) return false;
        size_t to = items.size();
        items.resize(to + room);
        std::copy_n(items.begin() + first, count, items.begin() + static_cast<ptrdiff_t>(to));
        first = static_cast<uint32_t>(to);
      } else {
        room = uint64_t{count} + n;
        if (!items_fit(n)) return false;
        items.resize(first + room);
      }
      capacity = static_cast<uint32_t>(room);
    }
    std::copy(stack_.end() - static_cast<ptrdiff_t>(n), stack_.end(), graph_.items_.begin() + first + count);
    count += static_cast<uint32_t>(n);
    stack_.resize(stack_.size() - n);
    return true;
  }

  Graph::Extra& extra_of(NodeId object) {
    Node& node = graph_.nodes_[object];
    if (node.object.extra == kNoNode) {
      node.object.extra = static_cast<uint32_t>(graph_.extras_.size());
      graph_.extras_.emplace_back();
    }
    return graph_.extras_[node.object.extra];
  }

  /// The top `n` nodes go into the container below them. Objects take items of any kind: subclasses of dict, list, set.
  bool add_items(Kind kind, size_t n) {
    if (kind == Kind::kDict && n % 2 != 0) return bad("a dict with a key but no value");
    if (stack_.size() - fence() < n + 1) return bad("the stack is too short");
    NodeId target = stack_[stack_.size() - n - 1];
    Node& node = graph_.nodes_[target];
    if (node.kind == Kind::kObject) {
      Graph::Extra& extra = extra_of(target);
      const bool pairs = kind == Kind::kDict;
      if (extra.count != 0 && extra.pairs != pairs && n != 0) return bad("an object with items of two kinds");
      if (n != 0) extra.pairs = pairs;
      return extend(extra.first, extra.count, extra.capacity, n);
    }
    if (node.kind != kind) {
      if (!loose_) return bad("items for something that cannot take them");
      changes(target);
      stack_.resize(stack_.size() - n);
      return true;
    }
    return extend(node.range.first, node.size, node.range.capacity, n);
  }
  bool add_marked_items(Kind kind) {
    size_t n = 0;
    return pop_mark(n) && add_items(kind, n);
  }

  // --- memo
  // ------------------------------------------------------------------------------------------------------------
  bool put(uint64_t index) {
    if (!has(1)) return false;
    if (loose_) {
      if (loose_memo_.size() >= limits_.memo) return bad("the memo is larger than the limit");
      loose_memo_[index] = stack_.back();
      memo_count_ = loose_memo_.size();
      return true;
    }
    // An honest index is below the number of operations, which is below the number of bytes.
    if (index >= limits_.memo || index >= data_size_) return bad("a memo index is out of range");
    if (index == memo_.size()) memo_.push_back(kNoNode);
    else if (index > memo_.size()) memo_.resize(index + 1, kNoNode);
    if (memo_[index] == kNoNode) ++memo_count_;
    memo_[index] = stack_.back();
    return true;
  }
  bool get(uint64_t index) {
    if (loose_) {
      auto found = loose_memo_.find(index);
      return found != loose_memo_.end() ? push(found->second) : bad("a memo entry is missing");
    }
    if (index >= memo_.size() || memo_[index] == kNoNode) return bad("a memo entry is missing");
    return push(memo_[index]);
  }

  // --- names and calls
  // -------------------------------------------------------------------------------------------------
  bool push_global(std::string_view module, std::string_view name) {
    if (module.size() > kMaxName || name.size() > kMaxName) {
      if (!loose_) return bad("a global with an overlong name");
      module = kComputed.module, name = kComputed.name;
    }
    auto [it, added] = known_.try_emplace({module, name}, static_cast<uint32_t>(graph_.globals_.size()));
    if (added) graph_.globals_.push_back({module, name, meaning_of(module, name), at_});
    Node node;
    node.kind = Kind::kGlobal;
    node.size = it->second;
    return push_node(node);
  }
  bool stack_global() {
    if (!has(2)) return false;
    auto name = graph_.as_str(pop()), module = graph_.as_str(pop());
    if (name && module) return push_global(*module, *name);
    return loose_ ? push_global(kComputed.module, kComputed.name) : bad("a global whose name is not text");
  }
  bool call(CallForm form) {
    const bool keywords = form == CallForm::kNewKeywords;
    if (!has(keywords ? 3 : 2)) return false;
    if (keywords && !push_container(Kind::kTuple, 2)) return false;
    NodeId args = pop(), callee = pop();
    if (!loose_) {
      if (graph_.kind(args) != Kind::kTuple) return bad("a call whose arguments are no tuple");
      Kind kind = graph_.kind(callee);
      if (kind != Kind::kGlobal && kind != Kind::kObject) return bad("a call of something that is not a name");
    }
    return push_object(callee, args, form);
  }
  bool push_object(NodeId callee, NodeId args, CallForm form = CallForm::kCall) {
    Node node;
    node.kind = Kind::kObject;
    node.form = form;
    node.size = callee;
    node.object = {args, kNoNode};
    return push_node(node);
  }
  bool build() {
    if (!has(2)) return false;
    NodeId state = pop(), target = stack_.back();
    // On a global it would overwrite the names of a module or class.
    if (graph_.kind(target) != Kind::kObject) {
      if (!loose_) return bad("a state for something that is not an object");
      changes(target);
      return true;
    }
    extra_of(target).state = state;
    return true;
  }
  void changes(NodeId target) {
    if (graph_.kind(target) == Kind::kGlobal && changed_.size() < kMaxChanged) changed_.push_back({target, at_});
  }

  // --- what only a loose reading takes
  // -----------------------------------------------------------------------------------
  bool loose_op(uint8_t op) {
    switch (op) {
      case EXT1: case EXT2: case EXT4:
        return reader_.take(op == EXT1 ? 1 : op == EXT2 ? 2 : 4) ? push_global("copyreg", "<extension>") : truncated();
      case NEXT_BUFFER: return push_simple(Kind::kNone);
      case READONLY_BUFFER: return has(1);
      case PERSID: return reader_.line() ? push_simple(Kind::kNone) && persistent() : truncated();
      case INST: {
        auto module = reader_.line(), name = reader_.line();
        size_t n = 0;
        if (!module || !name) return truncated();
        if (!pop_mark(n) || !push_container(Kind::kTuple, n)) return false;
        NodeId args = pop();
        return push_global(*module, *name) && push_object(pop(), args);
      }
      case OBJ: {
        size_t n = 0;
        if (!pop_mark(n)) return false;
        if (n == 0) return bad("the stack is too short");
        if (!push_container(Kind::kTuple, n - 1)) return false;
        NodeId args = pop();
        return push_object(pop(), args);
      }
      default: return bad("an unknown opcode");
    }
  }
  /// Text whose escapes are undone: it lies in the graph, not in the pickle.
  bool push_unescaped(std::string_view text, bool unicode_only) {
    if (text.size() > limits_.string_bytes) return bad("a string is longer than the limit");
    Node node;
    node.kind = Kind::kStr;
    node.flag = true;
    node.offset = graph_.unescaped_.size();
    graph_.unescaped_.push_back(unescape(text, unicode_only));
    node.size = static_cast<uint32_t>(graph_.unescaped_.back().size());
    return push_node(node);
  }

  bool persistent() {
    if (!has(1)) return false;
    Node node;
    node.kind = Kind::kPersistent;
    node.object = {pop(), kNoNode};
    return push_node(node);
  }

  // --- numbers
  // ---------------------------------------------------------------------------------------------------------
  bool push_long(std::optional<uint64_t> length) {
    if (!length) return truncated();
    if (*length > limits_.long_bytes) return bad("an integer is longer than the limit");
    if (*length > 8) return push_text(Kind::kBigInt, *length);
    auto raw = reader_.take(*length);
    if (!raw) return truncated();
    uint64_t value = 0;
    for (size_t i = 0; i < raw->size(); ++i) value |= static_cast<uint64_t>((*raw)[i]) << (8 * i);
    unsigned bits = static_cast<unsigned>(*length) * 8;
    if (bits > 0 && bits < 64 && (value >> (bits - 1)) != 0) value |= ~uint64_t{0} << bits;
    return push_int(static_cast<int64_t>(value));
  }
  bool push_decimal(std::string_view text, bool is_long) {
    if (!is_long && (text == "00" || text == "01")) return push_simple(Kind::kBool, text == "01");
    if (is_long && !text.empty() && text.back() == 'L') text.remove_suffix(1);
    int64_t value = 0;
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size())
      return loose_ ? push_int(0) : bad("an integer that is not one");
    return push_int(value);
  }
  bool push_binfloat() {
    auto raw = reader_.read<uint64_t>();
    if (!raw) return truncated();
    uint64_t swapped = __builtin_bswap64(*raw);
    double value;
    std::memcpy(&value, &swapped, sizeof value);
    return push_float(value);
  }
  bool push_float_text(std::string_view text) {
    double value = 0;
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size())
      return loose_ ? push_float(0) : bad("a number that is not one");
    return push_float(value);
  }

  template <class Length>
  bool sized(Kind kind) {
    auto length = reader_.read<Length>();
    return length ? push_text(kind, *length) : truncated();
  }

  bool step(uint8_t op) {
    // The order follows how often real checkpoints use them; the compiler makes a table of it anyway.
    switch (op) {
      case BINUNICODE: return sized<uint32_t>(Kind::kStr);
      case SHORT_BINUNICODE: return sized<uint8_t>(Kind::kStr);
      case BINUNICODE8: return sized<uint64_t>(Kind::kStr);
      case BINBYTES: return sized<uint32_t>(Kind::kBytes);
      case SHORT_BINBYTES: return sized<uint8_t>(Kind::kBytes);
      case BINBYTES8: return sized<uint64_t>(Kind::kBytes);
      case BYTEARRAY8: return sized<uint64_t>(Kind::kBytes) && mark_last(CallForm::kByteArray);
      case BINSTRING: return sized<uint32_t>(Kind::kStr);  // signed, but a negative length is over the limit
      case SHORT_BINSTRING: return sized<uint8_t>(Kind::kStr);
      case MEMOIZE: return put(memo_count_);
      case BINPUT: case LONG_BINPUT: case BINGET: case LONG_BINGET: case PUT: case GET: return memo_op(op);
      case MARK:
        if (marks_.size() >= limits_.stack) return bad("more marks than the limit");
        marks_.push_back(static_cast<uint32_t>(stack_.size()));
        return true;
      case EMPTY_TUPLE:
        if (empty_tuple_ != kNoNode) return push(empty_tuple_);
        empty_tuple_ = static_cast<NodeId>(graph_.nodes_.size());
        return push_container(Kind::kTuple, 0);
      case EMPTY_LIST: return push_container(Kind::kList, 0);
      case EMPTY_DICT: return push_container(Kind::kDict, 0);
      case EMPTY_SET: return push_container(Kind::kSet, 0);
      case TUPLE1: return has(1) && push_container(Kind::kTuple, 1);
      case TUPLE2: return has(2) && push_container(Kind::kTuple, 2);
      case TUPLE3: return has(3) && push_container(Kind::kTuple, 3);
      case TUPLE: case LIST: case DICT: case FROZENSET: return from_mark(op);
      case APPEND: return has(2) && add_items(Kind::kList, 1);
      case APPENDS: return add_marked_items(Kind::kList);
      case SETITEM: return has(3) && add_items(Kind::kDict, 2);
      case SETITEMS: return add_marked_items(Kind::kDict);
      case ADDITEMS: return add_marked_items(Kind::kSet);
      case STACK_GLOBAL: return stack_global();
      case REDUCE: return call(CallForm::kCall);
      case NEWOBJ: return call(CallForm::kNew);
      case NEWOBJ_EX: return call(CallForm::kNewKeywords);
      case BUILD: return build();
      case BINPERSID: return persistent();
      case NONE: return push_simple(Kind::kNone);
      case NEWTRUE: return push_simple(Kind::kBool, true);
      case NEWFALSE: return push_simple(Kind::kBool, false);
      case BININT: case BININT1: case BININT2: return binary_int(op);
      case LONG1: return push_long(reader_.read<uint8_t>());
      case LONG4: return push_long(reader_.read<uint32_t>());
      case BINFLOAT: return push_binfloat();
      case INT: case LONG: case FLOAT: case STRING: case UNICODE: case GLOBAL: return text_op(op);
      case POP: case POP_MARK: case DUP: return shuffle(op);
      case PROTO: {
        auto version = reader_.read<uint8_t>();
        return version ? *version <= 5 || bad("a protocol above 5") : truncated();
      }
      case FRAME: {
        auto length = reader_.read<uint64_t>();
        return length ? loose_ || *length <= reader_.remaining() || bad("a frame past the end") : truncated();
      }
      case STOP:
        if (stack_.empty() || (!loose_ && (stack_.size() != 1 || !marks_.empty())))
          return bad("STOP with a stack of other than one value");
        graph_.root_ = stack_.back();
        stopped_ = true;
        return true;
      default: return loose_ ? loose_op(op) : refused_op(op);
    }
  }

  bool refused_op(uint8_t op) {
    switch (op) {
      case EXT1: case EXT2: case EXT4: return refuse("EXT");
      case NEXT_BUFFER: case READONLY_BUFFER: return refuse("NEXT_BUFFER");
      case PERSID: return refuse("PERSID");
      case INST: return refuse("INST");
      case OBJ: return refuse("OBJ");
      default: return bad("an unknown opcode");
    }
  }

  bool memo_op(uint8_t op) {
    std::optional<uint64_t> index;
    if (op == PUT || op == GET) {
      auto line = reader_.line();
      uint64_t value = 0;
      if (!line) return truncated();
      auto [end, error] = std::from_chars(line->data(), line->data() + line->size(), value);
      if (error != std::errc() || end != line->data() + line->size()) return bad("a memo index that is no number");
      index = value;
    } else if (op == BINPUT || op == BINGET) {
      index = reader_.read<uint8_t>();
    } else {
      index = reader_.read<uint32_t>();
    }
    if (!index) return truncated();
    return op == PUT || op == BINPUT || op == LONG_BINPUT ? put(*index) : get(*index);
  }

  bool from_mark(uint8_t op) {
    size_t n = 0;
    if (!pop_mark(n)) return false;
    if (op == FROZENSET) return push_container(Kind::kSet, n) && mark_last(CallForm::kFrozen);
    return push_container(op == TUPLE ? Kind::kTuple : op == LIST ? Kind::kList : Kind::kDict, n);
  }
  bool mark_last(CallForm form) {
    graph_.nodes_.back().form = form;
    return true;
  }

  bool binary_int(uint8_t op) {
    if (op == BININT1) {
      auto value = reader_.read<uint8_t>();
      return value ? push_int(*value) : truncated();
    }
    if (op == BININT2) {
      auto value = reader_.read<uint16_t>();
      return value ? push_int(*value) : truncated();
    }
    auto value = reader_.read<int32_t>();
    return value ? push_int(*value) : truncated();
  }

  bool text_op(uint8_t op) {
    size_t at = reader_.position();
    auto line = reader_.line();
    if (!line) return truncated();
    if (op == INT || op == LONG) return push_decimal(*line, op == LONG);
    if (op == FLOAT) return push_float_text(*line);
    if (op == GLOBAL) {
      auto name = reader_.line();
      return name ? push_global(*line, *name) : truncated();
    }
    // Text of protocol 0: taken where no escape needs undoing, for nothing of ours is written so.
    const bool escapes = line->find('\\') != std::string_view::npos;
    if (escapes && !loose_) return refuse("STRING or UNICODE with escapes");
    size_t begin = 0, length = line->size();
    if (op == STRING) {
      if (length < 2 || line->front() != line->back() || (line->front() != '\'' && line->front() != '"'))
        return bad("a string without quotes");
      begin = 1, length -= 2;
    }
    if (escapes) return push_unescaped(line->substr(begin, length), op == UNICODE);
    size_t after = reader_.position();
    reader_.seek(at + begin);
    if (!push_text(Kind::kStr, length)) return false;
    return reader_.seek(after);
  }

  bool shuffle(uint8_t op) {
    if (op == DUP) return has(1) && push(stack_.back());
    if (op == POP_MARK) {
      size_t n = 0;
      if (!pop_mark(n)) return false;
      stack_.resize(stack_.size() - n);
      return true;
    }
    if (!marks_.empty() && marks_.back() == stack_.size()) {
      marks_.pop_back();  // POP takes a mark off the stack as well
      return true;
    }
    if (!has(1)) return false;
    stack_.pop_back();
    return true;
  }

  ByteReader reader_;
  const Limits& limits_;
  Graph graph_;
  std::vector<NodeId> stack_, memo_;
  std::array<NodeId, 256> small_ints_;
  std::array<NodeId, 2> bools_ = {kNoNode, kNoNode};
  NodeId none_ = kNoNode, empty_tuple_ = kNoNode;
  std::vector<uint32_t> marks_;
  std::map<std::pair<std::string_view, std::string_view>, uint32_t> known_;
  std::string why_;
  uint64_t memo_count_ = 0;
  size_t data_size_ = 0;
  bool stopped_ = false;
  bool unsupported_ = false;
  size_t at_ = 0;  ///< of the opcode that runs
  const bool loose_;
  std::unordered_map<uint64_t, NodeId> loose_memo_;
  std::vector<LooseGraph::Change> changed_;
};

Result<Graph> parse(ByteSpan data, const Limits& limits) { return Machine(data, limits).run(); }

LooseGraph parse_loosely(ByteSpan data, const Limits& limits) { return Machine(data, limits, true).run_loosely(); }

}  // namespace ckpt::pickle
