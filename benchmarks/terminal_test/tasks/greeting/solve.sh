echo "Hello from Hermes Agent" >~/greeting.txt
