echo $((123 + 456)) >~/answer.txt
