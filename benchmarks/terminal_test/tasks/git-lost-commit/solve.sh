set -e
cd ~/notes
export GIT_AUTHOR_NAME=Author GIT_AUTHOR_EMAIL=author@example.com
export GIT_COMMITTER_NAME=Author GIT_COMMITTER_EMAIL=author@example.com
git reset -q
lost=$(git reflog --format='%H %gs' | grep 'harbour chapter' | head -1 | cut -d' ' -f1)
git cherry-pick -n "$lost" || true
printf 'Title, second edition\n\nindex\n- harbour\n' >index.md
git add -A
git commit -qm 'Bring back the harbour chapter'
