from fedgrec.cli import main

raise SystemExit(main())
