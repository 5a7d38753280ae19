// `ckpt completion bash|zsh|fish`: a script made from the command table, so that it knows every verb and flag.
#include <fmt/format.h>

#include "cli/app.h"

namespace ckpt::cli {

namespace {

constexpr const char* kBashHelpers = R"sh(# Processes, with their names where bash lists them and inserts none (?, !).
_ckpt_pids() {
  local pid name
  for pid in /proc/[0-9]*; do
    pid=${pid#/proc/}
    [[ $pid != "$1"* ]] || COMPREPLY+=("$pid")
  done
  [[ ${COMP_TYPE-} == 63 || ${COMP_TYPE-} == 33 ]] && ((${#COMPREPLY[@]} > 1)) || return
  compopt +o filenames 2>/dev/null
  for pid in "${!COMPREPLY[@]}"; do
    { read -r name </proc/"${COMPREPLY[pid]}"/comm; } 2>/dev/null && COMPREPLY[pid]+=" ($name)"
  done
}

# PATH, then a key of what lies there. $1: options whose value is no argument. Keys are a line each in the document;
# those with quotes and backslashes are left out.
_ckpt_path_and_key() {
  local path= seen= skip= word
  for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    if [[ -z $seen ]]; then [[ $word != "$verb" ]] || seen=1
    elif [[ $word == = ]]; then skip=1
    elif [[ -n $skip ]]; then skip=
    elif [[ " $1 " == *" $word "* ]]; then skip=1
    elif [[ $word != -* ]]; then path=${word/#~\//$HOME/} path=${path//\\/}; break; fi
  done
  if [[ -z $path ]]; then COMPREPLY=($(compgen -f -- "$cur")); return; fi
  # bash quotes what a key holds of its own syntax, as of the name of a file.
  mapfile -t COMPREPLY < <("${COMP_WORDS[0]}" load-metadata "$path" --key "${cur//\\/}**" 2>/dev/null |
    sed -n 's/^ *{"key": "\([^"\\]*\)".*/\1/p')
}
)sh";

constexpr const char* kZshHelpers = R"sh(_ckpt_pids() {
  local -a pids
  local pid
  for pid in /proc/<->(N:t); do pids+=("$pid:$(</proc/$pid/comm)"); done 2>/dev/null
  _describe process pids
}

# Keys of the checkpoint that the first argument names: a line each in the document.
# Those with quotes and backslashes are left out.
_ckpt_keys() {
  local -a keys
  keys=(${(f)"$(ckpt load-metadata ${(Q)line[1]/#\~\//$HOME/} 2>/dev/null |
    sed -n 's/^ *{"key": "\([^"\\]*\)".*/\1/p')"})
  _multi_parts . keys
}
)sh";

constexpr const char* kFishHelpers = R"sh(# Keys of the checkpoint that the first argument names, a line each in
# the document; those with quotes and backslashes are left out.
# $argv: options whose value is no argument.
function __ckpt_keys
    set -l words (commandline -opc)
    set -l ckpt $words[1]
    set -l skip
    set -e words[1..(contains -i cat $words)]
    for word in $words
        if set -q skip[1]
            set skip
        else if contains -- $word $argv
            set skip 1
        else if not string match -q -- '-*' $word
            $ckpt load-metadata (string replace -r '^~/' $HOME/ $word) 2>/dev/null |
                string replace -fr '^ *\{"key": "([^"\\\\]*)".*' '$1'
            return
        end
    end
end

)sh";

std::string names_of(const std::vector<OptionSummary>& flags) {
  std::vector<std::string> out;
  for (const OptionSummary& flag : flags) out.insert(out.end(), flag.names.begin(), flag.names.end());
  return fmt::format("{}", fmt::join(out, " "));
}

/// Those that take a value, which is then no argument of the verb.
std::string valued_names(const std::vector<OptionSummary>& flags, const std::vector<OptionSummary>& global) {
  std::vector<OptionSummary> all = flags;
  all.insert(all.end(), global.begin(), global.end());
  std::erase_if(all, [](const OptionSummary& flag) { return !flag.takes_value; });
  return names_of(all);
}

/// What completes a flag's value.
std::string bash_value(const OptionSummary& flag) {
  if (flag.is_pid) return "_ckpt_pids \"$cur\"";
  if (flag.values.empty()) return "COMPREPLY=($(compgen -f -- \"$cur\"))";
  const std::string words = fmt::format("compgen -W '{}'", fmt::join(flag.values, " "));
  return flag.is_list ? fmt::format("COMPREPLY=($({} -P \"${{cur%\"${{cur##*,}}\"}}\" -- \"${{cur##*,}}\"))", words)
                      : fmt::format("COMPREPLY=($({} -- \"$cur\"))", words);
}

/// The choices of every flag with a closed set, as the arms of a shell `case` over the word before the cursor.
std::string bash_value_arms(const std::vector<OptionSummary>& flags, const std::string& verb) {
  std::string out;
  for (const OptionSummary& flag : flags) {
    if (!flag.takes_value) continue;
    std::vector<std::string> patterns;
    for (const std::string& name : flag.names) patterns.push_back(verb + ":" + name);
    out += fmt::format("    {}) {}; return ;;\n", fmt::join(patterns, "|"), bash_value(flag));
  }
  return out;
}

std::string bash_script(const std::vector<VerbSummary>& verbs, const std::vector<OptionSummary>& global) {
  std::string names, arms = bash_value_arms(global, "*"), words, arguments;
  for (const VerbSummary& verb : verbs) {
    names += (names.empty() ? "" : " ") + verb.name;
    arms += bash_value_arms(verb.options, verb.name);
    words += fmt::format("    {}) words='{} {}' ;;\n", verb.name, names_of(verb.options), names_of(global));
    if (!verb.values.empty())
      arguments += fmt::format("    {}) COMPREPLY=($(compgen -W '{}' -- \"$cur\")) ;;\n", verb.name,
                               fmt::join(verb.values, " "));
    if (verb.takes_key)
      arguments +=
          fmt::format("    {}) _ckpt_path_and_key '{}' ;;\n", verb.name, valued_names(verb.options, global));
  }
  return fmt::format(R"(# bash completion for ckpt, made by `ckpt completion bash`
{5}
_ckpt() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}} verb= word words
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    case " {0} " in *" $word "*) verb=$word; break ;; esac
  done
  COMPREPLY=()
  # bash cuts --option=value in three.
  if [[ $cur == = ]]; then cur=; elif [[ $prev == = ]]; then prev=${{COMP_WORDS[COMP_CWORD-2]}}; fi
  case "$verb:$prev" in
{1}  esac
  case "$verb" in
    '') words='{0} {2}' ;;
{3}  esac
  if [[ $cur == -* || -z $verb ]]; then
    COMPREPLY=($(compgen -W "$words" -- "$cur"))
    return
  fi
  case "$verb" in
{4}    *) COMPREPLY=($(compgen -f -- "$cur")) ;;
  esac
}}
complete -o filenames -F _ckpt ckpt
)",
                     names, arms, names_of(global), words, arguments, kBashHelpers);
}

/// Inside single quotes, and inside an _arguments specification where brackets and colons mean something.
std::string zsh_quoted(const std::string& text) {
  std::string out;
  for (char c : text) {
    if (c == '\'') out += "'\\''";
    else if (c == '[' || c == ']' || c == ':') out += std::string("\\") + c;
    else out += c;
  }
  return out;
}

std::string zsh_arguments(const std::vector<OptionSummary>& flags, const std::string& indent) {
  std::string out;
  for (const OptionSummary& flag : flags) {
    std::string value;
    if (flag.takes_value)
      value = flag.is_pid           ? ":pid:_ckpt_pids"
              : flag.values.empty() ? ":value:_files"
              : flag.is_list        ? fmt::format(":values:_sequence compadd - {}", fmt::join(flag.values, " "))
                                    : fmt::format(":value:({})", fmt::join(flag.values, " "));
    for (const std::string& name : flag.names) {
      const char* equals = flag.takes_value && name.starts_with("--") ? "=" : "";  // --name=value, too
      out += fmt::format("{}'{}{}[{}]{}' \\\n", indent, name, equals, zsh_quoted(flag.summary), value);
    }
  }
  return out;
}

std::string zsh_script(const std::vector<VerbSummary>& verbs, const std::vector<OptionSummary>& global) {
  std::string table, arms;
  for (const VerbSummary& verb : verbs) {
    table += fmt::format("    '{}:{}'\n", verb.name, zsh_quoted(verb.summary));
    const std::string argument = verb.takes_key        ? "1:path:_files' '2:key:_ckpt_keys"
                                 : verb.values.empty() ? "*:path:_files"
                                                       : fmt::format("1:value:({})", fmt::join(verb.values, " "));
    arms += fmt::format("    {})\n      _arguments \\\n{}{}        '{}' ;;\n", verb.name,
                        zsh_arguments(verb.options, "        "), zsh_arguments(global, "        "), argument);
  }
  return fmt::format(R"(#compdef ckpt
# zsh completion for ckpt, made by `ckpt completion zsh`
{3}
_ckpt() {{
  local -a verbs
  local state line
  verbs=(
{0}  )
  _arguments -C \
{1}    '1:verb:->verb' '*::argument:->argument'
  if [[ $state == verb ]]; then
    _describe verb verbs
    return
  fi
  case $words[1] in
{2}  esac
}}
_ckpt "$@"
)",
                     table, zsh_arguments(global, "    "), arms, kZshHelpers);
}

std::string fish_quoted(const std::string& text) {
  std::string out;
  for (char c : text) out += c == '\'' || c == '\\' ? std::string("\\") + c : std::string(1, c);
  return "'" + out + "'";
}

std::string fish_flags(const std::vector<OptionSummary>& flags, const std::string& condition) {
  std::string out;
  for (const OptionSummary& flag : flags) {
    out += "complete -c ckpt" + condition;
    for (const std::string& name : flag.names) {
      out += name.rfind("--", 0) == 0 ? " -l " + name.substr(2) : " -s " + name.substr(1);
    }
    if (flag.is_pid) out += " -x -a '(__fish_complete_pids)'";
    else if (flag.takes_value && flag.is_list && !flag.values.empty())
      out += fmt::format(" -x -a '(__fish_append , {})'", fmt::join(flag.values, " "));
    else if (flag.takes_value)
      out += flag.values.empty() ? " -r" : fmt::format(" -x -a '{}'", fmt::join(flag.values, " "));
    out += " -d " + fish_quoted(flag.summary) + "\n";
  }
  return out;
}

std::string fish_script(const std::vector<VerbSummary>& verbs, const std::vector<OptionSummary>& global) {
  std::string out = std::string("# fish completion for ckpt, made by `ckpt completion fish`\n") + kFishHelpers +
                    fish_flags(global, "");
  for (const VerbSummary& verb : verbs) {
    out +=
        fmt::format("complete -c ckpt -n __fish_use_subcommand -f -a {} -d {}\n", verb.name, fish_quoted(verb.summary));
    out += fish_flags(verb.options, fmt::format(" -n '__fish_seen_subcommand_from {}'", verb.name));
    if (!verb.values.empty())
      out += fmt::format("complete -c ckpt -n '__fish_seen_subcommand_from {}' -f -a '{}'\n", verb.name,
                         fmt::join(verb.values, " "));
    if (verb.takes_key)
      out += fmt::format("complete -c ckpt -n '__fish_seen_subcommand_from {}' -a '(__ckpt_keys {})'\n", verb.name,
                         valued_names(verb.options, global));
  }
  return out;
}

}  // namespace

Command::Run add_completion(VerbOptions& app) {
  auto shell = std::make_shared<std::string>();
  app.add_option("shell", *shell, "bash, zsh or fish").required().one_of({"bash", "zsh", "fish"});
  return [shell](Context& context) -> Result<void> {
    const auto [global, verbs] = describe_command_line();
    if (*shell == "bash") context.out.data(bash_script(verbs, global));
    else if (*shell == "zsh") context.out.data(zsh_script(verbs, global));
    else context.out.data(fish_script(verbs, global));
    return {};
  };
}

}  // namespace ckpt::cli
