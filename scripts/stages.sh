# Sourced by scripts/setup: stages that leave a stamp of what they were made from, written last.
# A stage whose stamp is current costs a file read; one that was interrupted runs again.

# is_current NAME KEY
is_current() { [ -f ".stamps/$1" ] && [ "$(<".stamps/$1")" = "$2" ]; }

# key_of PATH...: a digest over the contents and names of files and folders, whatever their dates.
key_of() {
  find "$@" -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum | cut -c1-32
}

# finish NAME KEY: the stamp appears whole or not at all.
finish() { printf '%s\n' "$2" >".stamps/$1.new" && mv ".stamps/$1.new" ".stamps/$1"; }

# stage NAME KEY PYTHON [stage.py options] -- COMMAND...
stage() {
  local name=$1 key=$2 python=$3
  shift 3
  rm -f ".stamps/$name"
  "$python" scripts/stage.py --log ".stamps/$name.log" "$@"
  finish "$name" "$key"
}
