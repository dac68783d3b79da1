export LC_ALL=C
tr -cs 'A-Za-z' '\n' <~/tale.txt | tr 'A-Z' 'a-z' | grep . | sort | uniq -c | sort -k1,1nr -k2,2 | head -10 |
  sed 's/^ *//' >~/top.txt
